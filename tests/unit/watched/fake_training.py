"""A training without torch: what transformers' Trainer calls of its callbacks, in its order (trainer.py, 5.17)."""

import json
import os
import sys
import time

from transformers import trainer


class Box:
    def __init__(self, **values):
        self.__dict__.update(values)


def main(steps: int, step_s: float, saved: str, ends: str) -> None:
    callbacks = [each() for each in trainer.DEFAULT_CALLBACKS]
    args, state = Box(), Box(global_step=0, max_steps=steps)
    control = Box(should_save=False, should_evaluate=False, should_training_stop=False)

    def call(event, **more):
        for each in callbacks:
            getattr(each, event)(args, state, control, model=None, **more)

    call("on_init_end")
    call("on_train_begin", train_dataloader=None)
    for step in range(1, steps + 1):
        call("on_step_begin")
        time.sleep(step_s)
        state.global_step = step
        call("on_an_event_to_come")
        call("on_step_end")
        call("on_log", logs={"loss": 1.0 / step})
        if ends == "oom" and step == 3:
            raise OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.52 GiB of which "
                "1.00 GiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in use. Of the "
                "allocated memory 21.00 GiB is allocated by PyTorch, and 900.00 MiB is reserved by PyTorch but "
                "unallocated."
            )
        if ends == "asked" and step == 5:  # as `tunecast watch` asks where a limit is near
            with open(os.path.join(os.environ["TUNECAST_RUN"], "stop"), "w", encoding="utf-8"):
                pass
        if ends == "killed" and step == 3:
            journal = os.path.join(os.environ["TUNECAST_RUN"], f"rank-0-{os.getpid()}.jsonl")
            while '"step":3' not in open(journal, encoding="utf-8").read():  # noqa: SIM115
                time.sleep(0.1)
            os.kill(os.getpid(), 9)
        if control.should_save:
            with open(saved, "w", encoding="utf-8") as file:
                json.dump(step, file)
            call("on_save")
            control.should_save = False
        if control.should_training_stop:
            break
    call("on_train_end")


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else "")
