"""Which run a configuration is: a hash of everything that decides its result."""

import copy
import hashlib
import json
from typing import Any

# What cannot change a result, by dotted path below the configuration; `init_args` left out.
NEUTRAL = (
    "runs_dir",
    "experiment",
    "fresh",
    "strict_resume",
    "weights_only",
    "verbose",
    "return_predictions",
    "checkpoint.every_n_steps",
    "data.root",
    "data.eval_batch_size",
    "data.num_workers",
    "data.pin_memory",
    "trainer.accelerator",
    "trainer.default_root_dir",
    "trainer.devices",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.limit_predict_batches",
    "trainer.limit_test_batches",
    "trainer.log_every_n_steps",
    "trainer.max_time",
    "trainer.logger",
    "trainer.num_nodes",
    "trainer.profiler",
    "trainer.strategy",
)


def run_identity(config: dict[str, Any]) -> str:
    """Ten hexadecimal digits of the resolved configuration, seed included, without what cannot change the result."""
    config = copy.deepcopy(config)
    config.pop("config", None)
    if config.get("ckpt_path") in (None, "last", "best"):
        config.pop("ckpt_path", None)
    for path in NEUTRAL:
        node: Any = config
        *parents, leaf = path.split(".")
        for parent in parents:
            node = node.get(parent) or {}
            node = node.get("init_args", node) if "class_path" in node else node
        node.pop(leaf, None)
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]
