"""Announce what PaddleFormers' trainer saves: give ``AnnounceSaves()`` to the trainer's ``callbacks``.

Written for PaddleFormers 1.2.0 with ``save_checkpoint_format="flex_checkpoint"``, whose trainer calls ``on_save`` on
every rank when that rank has written its files of ``output_dir/checkpoint-<step>``. All announce; the first one counts.
"""

from pathlib import Path

from announce import announce  # the copy beside the training script; or: from ckptcore import announce
from paddleformers.trainer import TrainerCallback

COMPONENTS = ("model_state", "optimizer_state", "master_weight", "ema_state")


class AnnounceSaves(TrainerCallback):
    """One announcement for each component that the step has; its unique_id is always 0."""

    def on_save(self, args, state, control, **kwargs):  # noqa: ARG002 - as the trainer calls it
        step = Path(args.output_dir, f"checkpoint-{state.global_step}")
        for component in COMPONENTS:
            if (step / component).is_dir():
                announce(step / component, 0)
