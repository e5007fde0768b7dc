"""Beside a launched job: puts the files that measure it in their place, and runs the job's command with them.

python record.py -- bash train.sh      its journal: record/run.jsonl
"""

import glob
import os
import sys

PACKAGE, PREFIX, FOLDER = "tunecast_run", "record_", "record"


def main() -> int:
    here = os.path.dirname(os.path.abspath(__file__))
    folder = os.path.join(here, FOLDER)
    place = os.path.join(folder, "shipped")
    try:
        os.makedirs(os.path.join(place, PACKAGE), exist_ok=True)
        for path in glob.glob(os.path.join(glob.escape(here), f"{PREFIX}*.py")):
            name = os.path.basename(path)[len(PREFIX) :]
            with open(path, encoding="utf-8") as file:
                text = file.read()
            target = os.path.join(place, PACKAGE, name)
            with open(f"{target}.{os.getpid()}", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(f"{target}.{os.getpid()}", target)
        sys.path.insert(0, place)
        from tunecast_run import outside  # type: ignore[import-not-found]
    except Exception as error:  # a training is not stopped for what would have measured it
        print(f"tunecast: this run is not measured ({type(error).__name__}: {error})", file=sys.stderr)
        words = sys.argv[sys.argv.index("--") + 1 :]
        os.execvp(words[0], words)
    return int(outside.main(["--folder", folder, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
