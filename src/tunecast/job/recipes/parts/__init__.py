"""Files that go with several trainers."""
