"""Map the commands' names of datasets to data modules, without importing torch."""

from typing import Any

# name -> (data module, settings that replace its defaults)
DATASETS: dict[str, tuple[str, dict[str, Any]]] = {
    "listops": ("ListOps", {}),
    "text": ("Text", {}),
    "retrieval": ("Retrieval", {}),
    "image": ("Image", {}),
    "pathfinder": ("Pathfinder", {}),
    "pathx": ("Pathfinder", {"resolution": 128}),
    "scifar": ("SCIFAR", {}),
    "mnist": ("MNIST", {}),
    "wikitext103": ("WikiText", {}),
    "wikitext2": ("WikiText", {"version": "2"}),
    "slimpajama6b": ("SlimPajama", {}),
    "corpus": ("Corpus", {}),
}
# These are generated as they are read: there is nothing to prepare.
SYNTHETIC = {
    "associative_recall": "AssociativeRecall",
    "correlated_noise": "CorrelatedNoise",
    "first_token": "FirstToken",
    "linear_functional": "LinearFunctional",
    "mqar": "MQAR",
    "noisy_cosines": "NoisyCosines",
    "state_tracking": "StateTracking",
    "teacher_student": "TeacherStudent",
}
