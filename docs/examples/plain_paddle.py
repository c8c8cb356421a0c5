"""Save and announce from a plain Paddle training loop. Every rank runs the same lines.

Start it with ``python -m paddle.distributed.launch plain_paddle.py OUTPUT``.
"""

import sys
from pathlib import Path

import paddle
import paddle.distributed as dist
from announce import announce  # the copy beside the training script; or: from ckptcore import announce

output = Path(sys.argv[1])
model = paddle.nn.Linear(4, 4)

for step in (100, 200):
    directory = output / f"checkpoint-{step}" / "model_state"
    # A directory and an id of its own for each save: without unique_id Paddle overwrites the newest one in place.
    dist.save_state_dict({"model": model.state_dict()}, str(directory), unique_id=0)
    announce(directory, 0)
