"""What the kernel refuses a traced script, and all that it starts: from C and Rust as from Python.

calls.py      system calls that `ctypes` makes: their numbers, and whether they worked
landlock.py   writes outside a folder, programs that are not named, signals to others
mounts.py     every disk read-only but the run's folder, and shared memory of its own
restrict.py   all of it together, and what this kernel did not allow
seccomp.py    system calls that change attributes, reach a network, or get at the system
"""
