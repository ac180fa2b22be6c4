"""Student's t, Fisher's F and the normal distribution, without SciPy.

An interval over runs needs one t quantile. SciPy would give it, at the price of 100 MB in every install and half a
second at every start; the incomplete beta function behind it is a screenful. So it stands here, and the tests hold
it against SciPy (to 1e-10, for 1 to 1e6 degrees of freedom and p from 1e-6 to 1 - 1e-6) and against the closed forms
for one and two degrees of freedom. The normal distribution needs nothing: the standard library has both directions.

Degrees of freedom may be fractions (Welch) and may be infinite (then t is normal).
"""

import math
from statistics import NormalDist

_EPSILON = 1e-16
_TINY = 1e-300  # keeps Lentz's method from dividing by zero
# The continued fraction takes some sqrt(df) terms: about a thousand at df = 1e6. More than this means a wrong argument.
_MAX_TERMS = 100_000


def normal_cdf(x: float) -> float:
    """Return P(Z <= x) for a standard normal Z, accurate in both tails."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def normal_quantile(p: float) -> float:
    """Return the x below which a standard normal variable falls with probability p."""
    _check_probability(p)
    return NormalDist().inv_cdf(p)


def t_cdf(x: float, df: float) -> float:
    """Return P(T <= x) for Student's t with df degrees of freedom."""
    _check_df(df)
    if math.isnan(x):
        raise ValueError("t_cdf of a value that is not a number")
    tail = _upper_tail(abs(x), df)
    return 1.0 - tail if x > 0 else tail


def t_quantile(p: float, df: float) -> float:
    """Return the x below which Student's t with df degrees of freedom falls with probability p."""
    _check_probability(p)
    _check_df(df)
    if p == 0.5:
        return 0.0
    # 1 - p is exact for p >= 0.5, so working in the smaller tail loses nothing.
    tail = min(p, 1.0 - p)
    t = abs(NormalDist().inv_cdf(tail))
    if math.isinf(df):
        return math.copysign(t, p - 0.5)
    # Newton's method on ln(tail) over ln(t), where the heavy tail is nearly a straight line: the normal quantile is
    # then a good enough start even for df = 1, and the iterates fall monotonically after the first.
    for _ in range(100):
        reached = _upper_tail(t, df)
        step = math.log(reached / tail) * reached / (_density(t, df) * t)
        t *= math.exp(step)
        if abs(step) < 1e-15:
            break
    return math.copysign(t, p - 0.5)


def f_cdf(x: float, df_1: float, df_2: float) -> float:
    """Return P(F <= x) for Fisher's F, the ratio of two mean squares with these degrees of freedom."""
    _check_df(df_1)
    _check_df(df_2)
    if x <= 0:
        return 0.0
    a, b, y = df_1 / 2, df_2 / 2, df_1 * x / (df_1 * x + df_2)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(y) + b * math.log(df_2 / (df_1 * x + df_2))
    )
    if y < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(y, a, b) / a
    return 1.0 - front * _beta_fraction(1 - y, b, a) / b


def f_quantile(p: float, df_1: float, df_2: float) -> float:
    """Return the x below which Fisher's F falls with probability p, by bisection of its logarithm."""
    _check_probability(p)
    low, high = -60.0, 60.0
    while high - low > 1e-13:
        middle = (low + high) / 2
        low, high = (middle, high) if f_cdf(math.exp(middle), df_1, df_2) < p else (low, middle)
    return math.exp((low + high) / 2)


def _upper_tail(t: float, df: float) -> float:
    """P(T > t) for t >= 0: half the regularised incomplete beta function I_x(df/2, 1/2) at x = df / (df + t²)."""
    if math.isinf(df):
        return normal_cdf(-t)
    if t == 0.0:
        return 0.5
    if math.isinf(t) or math.isinf(t * t):
        return 0.0
    a = df / 2.0
    # x^a (1-x)^(1/2) / B(a, 1/2), with 1 - x = t² / (df + t²) formed directly: near t = 0 a subtraction would lose it.
    complement = t * t / (df + t * t)
    front = math.exp(_log_gamma_ratio(a) - a * math.log1p(t * t / df)) * math.sqrt(complement / math.pi)
    x = df / (df + t * t)
    if x < (a + 1.0) / (a + 2.5):
        return 0.5 * front * _beta_fraction(x, a, 0.5) / a
    return 0.5 - 0.5 * front * _beta_fraction(complement, 0.5, a) / 0.5


def _density(t: float, df: float) -> float:
    a = df / 2.0
    return math.exp(_log_gamma_ratio(a) - (a + 0.5) * math.log1p(t * t / df)) / math.sqrt(math.pi * df)


def _log_gamma_ratio(a: float) -> float:
    """ln Γ(a + 1/2) - ln Γ(a). For large a the two are in the millions and their difference would keep few digits."""
    if a < 20.0:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    return 0.5 * math.log(a) - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5) + 17 / (14336 * a**7)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function (Abramowitz and Stegun 26.5.8), by Lentz's method."""
    c = 1.0
    d = 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + term * d)
            c = _away_from_zero(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < 2 * _EPSILON:
            return value
    raise ValueError(f"the incomplete beta function did not converge at x={x}, a={a}, b={b}")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _check_probability(p: float) -> None:
    if not 0.0 < p < 1.0:
        raise ValueError(f"probability must be between 0 and 1, got {p}")


def _check_df(df: float) -> None:
    if not df > 0.0:
        raise ValueError(f"degrees of freedom must be above 0, got {df}")
