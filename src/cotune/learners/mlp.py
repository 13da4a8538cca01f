"""Multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotune.learners.declared import DeclaredLearner, table

_AUTO_SKLEARN = table(
    solver="adam",
    activation="relu",
    early_stopping=True,
    shuffle=True,
    batch_size="auto",
    tol=1e-4,
    validation_fraction=0.1,
    beta_1=0.9,
    beta_2=0.999,
    epsilon=1e-8,
)


class MultiLayerPerceptron(DeclaredLearner):
    """scikit-learn's perceptron, trained by Adam.

    Paper space and baseline: FLoRA, appendix D.2.3, with the values it fixes after Auto-sklearn.
    DASH searches the same ranges (appendix A; a minus sign is missing there: the lower end of its
    `learning_rate_init` must be ``exp(-5 ln 10)``).

    The wider space has one parameter of cotune's own: `layers`, the number of hidden layers, all
    of the width `hidden_layer_sizes`. In scikit-learn, width 64 and 2 layers are ``(64, 64)``.
    """

    name = "mlp"
    features = "dense"
    trained_by = "averaging"
    classifier = "cotune.learners.tolerant:TolerantPerceptronClassifier"
    regressor = "cotune.learners.tolerant:TolerantPerceptronRegressor"
    paper = table(
        hidden_layer_sizes=(50, 200),
        alpha=(1e-5, 1e1, "log"),
        learning_rate_init=(1e-5, 1e-1, "log"),
        **_AUTO_SKLEARN,
    )
    wide = table(
        hidden_layer_sizes=(16, 256, "log"),
        layers=(1, 3),
        activation=["relu", "tanh"],
        alpha=(1e-6, 1e1, "log"),
        learning_rate_init=(1e-5, 1e-1, "log"),
        batch_size=(16, 256, "log"),
        early_stopping=True,
    )
    baseline = table(
        hidden_layer_sizes=100,
        alpha=1e-4,
        learning_rate_init=1e-3,
        layers=1,
        **_AUTO_SKLEARN,
    )

    def translate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        arguments = dict(params)
        if (layers := arguments.pop("layers", 1)) > 1:
            arguments["hidden_layer_sizes"] = (arguments.get("hidden_layer_sizes", 100),) * layers
        return arguments
