"""A sitecustomize of the user's own: it is run too."""

import os

os.environ["USERS_OWN"] = "1"
