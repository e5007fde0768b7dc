"""What goes with a prediction that people read: what to change, what was not given, what the whole run costs."""

from __future__ import annotations

from tunecast.advise.suggestions import Suggestions, suggestions_for
from tunecast.advise.unstated import Spent, has_data, without_price
from tunecast.door.asking import Tick, no_tick
from tunecast.door.predict import rent_of
from tunecast.errors import TunecastError
from tunecast.planning.price import Rent
from tunecast.prediction.prediction import Prediction


def suggestions(prediction: Prediction, *, tick: Tick = no_tick, even_if_roomy: bool = True) -> Suggestions:
    """`tick` is called before each job that is tried. `even_if_roomy`: what frees memory is tried also where the job
    needs little of the card's."""
    return suggestions_for(prediction, tick=tick, spent=spent_on_run, even_if_roomy=even_if_roomy)


def rent_of_run(prediction: Prediction) -> Rent | None:
    """None where the job does not say how much data there is, or nobody rents out its machines."""
    if prediction.time is None or not has_data(prediction.job):
        return None
    try:
        return rent_of(prediction)
    except TunecastError:
        return None


def spent_on_run(prediction: Prediction) -> Spent:
    rent = rent_of_run(prediction)
    return without_price(prediction)._replace(usd=None if rent is None else rent.total_usd)
