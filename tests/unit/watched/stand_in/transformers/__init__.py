"""Stands where transformers would be."""
