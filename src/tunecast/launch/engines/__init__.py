"""Where a training runs, one file each.
"""
