"""Beside a launched job: puts the files that measure it in their place, and runs the job's command with them.

    python record.py -- bash train.sh      its journal: record/run.jsonl

record_sources.txt holds those files, each after a line with its name.
"""

import os
import re
import sys

PACKAGE, SOURCES, FOLDER = "tunecast_run", "record_sources.txt", "record"


def main() -> int:
    here = os.path.dirname(os.path.abspath(__file__))
    folder = os.path.join(here, FOLDER)
    place = os.path.join(folder, "shipped")
    try:
        os.makedirs(os.path.join(place, PACKAGE), exist_ok=True)
        with open(os.path.join(here, SOURCES), encoding="utf-8") as file:
            parts = re.split(r"^==> ([a-z_]+\.py) <==\n", file.read(), flags=re.M)
        for name, text in zip(parts[1::2], parts[2::2]):  # noqa: B905 (Python 3.9 has no strict)
            target = os.path.join(place, PACKAGE, name)
            beside = f"{target}.{os.urandom(8).hex()}"  # machines may share the folder, where processes have one number
            with open(beside, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(beside, target)
        sys.path.insert(0, place)
        from tunecast_run import outside  # type: ignore[import-not-found]
    except Exception as error:  # a training is not stopped for what would have measured it
        print(f"tunecast: this run is not measured ({type(error).__name__}: {error})", file=sys.stderr)
        words = sys.argv[sys.argv.index("--") + 1 :]
        os.execvp(words[0], words)
    return int(outside.main(["--folder", folder, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
