"""Every door, with its share of the inputs. A million of them take about 40 minutes of CPU time: readings a sixth of
a millisecond to two, predictions a twentieth of a second to a fifth, searches more than one."""

from __future__ import annotations

# Loaded once, before there are processes.
import tunecast.cli.fit
import tunecast.cli.largest
import tunecast.cli.plan
import tunecast.cli.predict
import tunecast.prediction.engines
import tunecast.prediction.time.timing
import tunecast.tape.build  # noqa: F401

from . import commands, readings, recipes
from .workers import Door

SEARCH_CPU_S = 30
"""A plan or a page of advice makes up to hundreds of predictions; those of the largest models take 15 s in all."""

DOORS = {
    door.name: door
    for door in (
        Door("fields", 0.23, 4000, readings.field_input),
        Door("trainers' keys", 0.14, 2000, recipes.key_input),
        Door("trainers' files", 0.06, 500, recipes.file_input),
        Door("job files", 0.14, 1000, readings.text_input),
        Door("config.json", 0.19344, 2000, readings.config_input),
        Door("lengths", 0.05, 1000, readings.length_input),
        Door("OOM logs", 0.06, 1000, readings.log_input),
        Door("calibrations", 0.05, 1000, readings.calibration_input),
        Door("price lists", 0.06, 500, readings.feed_input),
        Door("command lines", 0.004, 200, commands.flag_input),
        Door("environment", 0.003, 100, commands.environment_input),
        Door("servers", 0.003, 100, commands.reply_input),
        Door("predictions", 0.003, 25, commands.prediction_input),
        Door("config.json, predicted", 0.0035, 25, commands.config_prediction_input),
        Door("plans and other searches", 0.00006, 1, commands.search_input, SEARCH_CPU_S),
    )
}
