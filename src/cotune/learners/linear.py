"""Linear models."""

from __future__ import annotations

from cotune.learners.declared import DeclaredLearner, table


class LogisticRegression(DeclaredLearner):
    """Logistic regression, for classes only.

    Paper space: DASH, appendix A, "LogisticRegression", on linear scales as printed.
    """

    name = "logistic_regression"
    features = "dense"
    trained_by = "linear"
    tasks = ("classification",)
    classifier = "sklearn.linear_model:LogisticRegression"
    paper = table(
        tol=(1e-4, 1e-3),
        C=(0.2, 1.0),
        max_iter=(80, 100),
    )
    wide = table(
        tol=(1e-5, 1e-2, "log"),
        C=(1e-4, 1e4, "log"),
        max_iter=(50, 500, "log"),
        class_weight=[None, "balanced"],
    )
    baseline = table(tol=1e-4, C=1.0, max_iter=100)
