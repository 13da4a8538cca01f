"""Support vector machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cotune.learners.declared import DeclaredLearner, Only, table

if TYPE_CHECKING:
    from cotune.data.schema import Schema


class SupportVectorMachine(DeclaredLearner):
    """A support vector machine with the RBF kernel, scikit-learn's default.

    Paper space and baseline: FLoRA, appendix D.2.2, with the balanced class weights of its
    experiments, which the appendix leaves out. The fit draws no random numbers.
    """

    name = "svm"
    features = "dense"
    trained_by = "fourier"
    classifier = "sklearn.svm:SVC"
    regressor = "sklearn.svm:SVR"
    paper = table(
        C=(0.01, 1000.0, "log"),
        gamma=(1e-5, 10.0, "log"),
        tol=(1e-5, 1e-1, "log"),
        class_weight=Only("classification", "balanced"),
    )
    wide = table(
        C=(1e-3, 1e4, "log"),
        gamma=(1e-6, 10.0, "log"),
        tol=(1e-5, 1e-1, "log"),
        class_weight=Only("classification", [None, "balanced"]),
        epsilon=Only("regression", (1e-3, 1.0, "log")),
    )
    baseline = table(
        C=1.0,
        gamma=0.1,
        tol=1e-3,
        class_weight=Only("classification", "balanced"),
    )

    def settings(self, seed: int, schema: Schema) -> dict[str, Any]:
        return {}
