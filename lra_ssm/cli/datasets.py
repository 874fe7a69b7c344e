"""What the commands call each dataset, and the data module behind it. Needs no torch."""

from typing import Any

# name -> (data module, what is another default than its own)
DATASETS: dict[str, tuple[str, dict[str, Any]]] = {
    "listops": ("lra_ssm.datamodules.ListOps", {}),
    "text": ("lra_ssm.datamodules.Text", {}),
    "retrieval": ("lra_ssm.datamodules.Retrieval", {}),
    "image": ("lra_ssm.datamodules.Image", {}),
    "pathfinder": ("lra_ssm.datamodules.Pathfinder", {}),
    "pathx": ("lra_ssm.datamodules.Pathfinder", {"resolution": 128}),
    "scifar": ("lra_ssm.datamodules.SCIFAR", {}),
    "mnist": ("lra_ssm.datamodules.MNIST", {}),
    "wikitext103": ("lra_ssm.datamodules.WikiText", {}),
    "wikitext2": ("lra_ssm.datamodules.WikiText", {"version": "2"}),
    "slimpajama6b": ("lra_ssm.datamodules.SlimPajama", {}),
    "corpus": ("lra_ssm.datamodules.Corpus", {}),
}
LANGUAGE = ("wikitext103", "wikitext2", "slimpajama6b", "corpus")
# Made as they are read: there is nothing to prepare.
SYNTHETIC = {
    "associative_recall": "AssociativeRecall",
    "correlated_noise": "CorrelatedNoise",
    "first_token": "FirstToken",
    "linear_functional": "LinearFunctional",
    "noisy_cosines": "NoisyCosines",
    "teacher_student": "TeacherStudent",
}
