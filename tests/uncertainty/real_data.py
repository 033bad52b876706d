"""Regressions on real data sets, in their raw units, as statsmodels fits them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import statsmodels.api as sm
import torch
from torch import nn

from prunewald.uncertainty import InverseFisher, Sandwich

DATA = Path(__file__).parent / "data"
FITS: dict[str, tuple[Any, dict[str, Any]]] = {
    "squared_error": (sm.OLS, {}),
    "binary_cross_entropy": (sm.Logit, {"disp": 0, "tol": 1e-10, "maxiter": 100}),
    "cross_entropy": (sm.MNLogit, {"disp": 0, "tol": 1e-10, "maxiter": 100}),
    "poisson": (sm.Poisson, {"disp": 0, "tol": 1e-10, "maxiter": 100}),
}
ESTIMATORS: dict[str, tuple[type[InverseFisher] | type[Sandwich], str]] = {
    "InverseFisher": (InverseFisher, "nonrobust"),
    "Sandwich": (Sandwich, "HC0"),
}


class Regression(NamedTuple):
    """Inputs and targets, and the likelihood of a linear model of them."""

    kind: str
    x: Any
    y: Any


def _statsmodels(name: str) -> tuple[Any, Any]:
    data = getattr(sm.datasets, name).load_pandas()
    return np.asarray(data.exog, float), np.asarray(data.endog, float)


def _table(name: str) -> Any:
    return np.loadtxt(DATA / f"{name}.csv", delimiter=",", skiprows=1)


def _fair() -> Regression:
    x, y = _statsmodels("fair")
    return Regression("binary_cross_entropy", x[::3], (y[::3] > 0).astype(float))


def _randhie() -> Regression:
    x, y = _statsmodels("randhie")
    return Regression("poisson", x[::20], y[::20])


def _iris_species() -> Regression:
    table = _table("iris")[50:]  # setosa can be told from the others without an error: there is no best fit
    return Regression("binary_cross_entropy", table[:, :4], table[:, 4] - 1)


REGRESSIONS: dict[str, Callable[[], Regression]] = {
    "longley, linear": lambda: Regression("squared_error", *_statsmodels("longley")),
    "stackloss, linear": lambda: Regression("squared_error", *_statsmodels("stackloss")),
    "scotland, linear": lambda: Regression("squared_error", *_statsmodels("scotland")),
    "spector, logistic": lambda: Regression("binary_cross_entropy", *_statsmodels("spector")),
    "fair, logistic": _fair,
    "anes96, multinomial": lambda: Regression("cross_entropy", *_statsmodels("anes96")),
    "randhie, Poisson": _randhie,
    "cpunish, Poisson": lambda: Regression("poisson", *_statsmodels("cpunish")),
    "iris, linear": lambda: Regression("squared_error", _table("iris")[:, 1:4], _table("iris")[:, 0]),
    "iris, logistic": _iris_species,
    "wine, linear": lambda: Regression("squared_error", _table("wine")[:, 1:13], _table("wine")[:, 0]),
    "wine, multinomial": lambda: Regression("cross_entropy", _table("wine")[:, 1:5], _table("wine")[:, 13]),
}


def disagreement(name: str, estimator: str, dtype: torch.dtype, observed: bool) -> tuple[float, tuple[str, ...]]:
    """The largest relative difference of our standard errors to those of statsmodels, and the notes on ours.

    A fit in single precision has rounded weights, and so other residuals: statsmodels takes the errors from these. (By
    .12 longley's intercept of -3,482,259 is off; of the best fit's own robust errors that alone makes 1.6e-4.)
    """
    kind, x, y = REGRESSIONS[name]()
    ours, theirs = ESTIMATORS[estimator]
    fit, options = FITS[kind]
    fitted = fit(y, sm.add_constant(x)).fit(cov_type=theirs, **options)
    if kind == "squared_error":
        params = torch.tensor(fitted.params).to(dtype).double().numpy()
        fitted = sm.regression.linear_model.OLSResults(
            fitted.model, params, fitted.normalized_cov_params, cov_type=theirs
        )
    model, masks = _model(kind, np.atleast_2d(np.asarray(fitted.params).T), dtype)
    targets = torch.tensor(y).long() if kind == "cross_entropy" else torch.tensor(y).to(dtype)[:, None]
    sigmas = ours(observed=observed).estimate(model, [(torch.tensor(x).to(dtype), targets)], kind, masks=masks)
    found = torch.cat([sigmas["bias"][:, None], sigmas["weight"]], 1)[int(kind == "cross_entropy") :]
    expected = np.atleast_2d(np.asarray(fitted.bse).T)
    return float(abs(found.double().numpy() / expected - 1).max()), sigmas.notes


def _model(kind: str, params: Any, dtype: torch.dtype) -> tuple[nn.Linear, dict[str, torch.Tensor] | None]:
    """The fit as a layer; the first of several classes has weights of zero, and is left out."""
    reference = kind == "cross_entropy"
    model = nn.Linear(params.shape[1] - 1, len(params) + reference).to(dtype)
    with torch.no_grad():
        for param, values in ((model.weight, params[:, 1:]), (model.bias, params[:, 0])):
            param.zero_()
            param[int(reference) :] = torch.tensor(values)
    if not reference:
        return model, None
    masks = {name: torch.ones_like(param, dtype=torch.bool) for name, param in model.named_parameters()}
    for mask in masks.values():
        mask[0] = False
    return model, masks
