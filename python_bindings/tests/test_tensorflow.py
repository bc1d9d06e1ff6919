"""TensorFlow: Keras, a custom loop with a process a rank, and sums within a machine."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence

import pytest
from pages import programs

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="no TensorFlow"),
]

SECRET = "no word of any language"
SECONDS = 300

KERAS = """
    import sys
    import keras, numpy as np
    import tersor.tensorflow as tt

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):  # not registered
        def __init__(self, rate):
            self.rate = rate
        def __call__(self, step):
            return keras.ops.cast(self.rate, "float32")
        def get_config(self):
            return {}

    codec, dies = sys.argv[1], sys.argv[2:] == ["dies"]
    transport = tt.init(timeout=60)
    keras.utils.set_random_seed(1 + transport.rank)
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(256), keras.layers.Dense(10)])
    optimizer = keras.optimizers.SGD(Schedule(0.05))
    optimizer = tt.DistributedOptimizer(optimizer, codec=codec, timeout=20.0)
    if sys.argv[2:] != ["random start"]:
        tt.broadcast_variables(model.weights)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    x = np.random.default_rng(0).standard_normal((512, 32)).astype("f4")
    y = x[:, :10].argmax(1)
    mine = slice(transport.rank, None, transport.ranks)
    for epoch in range(3):
        told = model.fit(x[mine], y[mine], batch_size=32, shuffle=False, verbose=0)
        if dies and transport.rank == 1:
            import os
            os._exit(3)
    digest = [float(np.abs(one.numpy()).sum()) for one in model.trainable_variables]
    print(json.dumps([told.history["loss"][-1], digest, optimizer.reducer.statistics().sent_bytes]))
    tt.shutdown()
"""

LOOP = """
    import tensorflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    import tersor.tensorflow as tt
    transport = tt.init(timeout=60)
    with strategy.scope():
        start = tf.random.stateless_normal((64, 400), (1, 2))
        w = tf.Variable(start, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    reduce = tt.Reducer(codec="int8+ef")
    x = tf.random.stateless_normal((64, 64), (3 + transport.rank, 4))
    unused = tf.constant(1.0)

    @tf.function
    def step():
        def one():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w) ** 2)
            gradient, nothing = reduce(tape.gradient(loss, [w, unused]), ["w", "unused"])
            assert nothing is None
            w.assign_sub(20 * gradient)
            return loss
        return strategy.run(one)

    losses = [float(step()) for _ in range(20)]
    print(json.dumps([losses[0], losses[-1], float(tf.reduce_sum(tf.abs(w)))]))
    tt.shutdown()
"""

MIRRORED = """
    import sys
    import tensorflow as tf
    import tersor.tensorflow as tt
    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)

    def train(operations):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], operations)
        with strategy.scope():
            w = tf.Variable(tf.random.stateless_normal((64, 400), (1, 2)))
            b = tf.Variable(tf.zeros(400))
        x = tf.random.stateless_normal((64, 64), (3, 4))
        y = tf.random.stateless_normal((64, 400), (5, 6))
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(64).repeat(10)

        def one(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w + b - y) ** 2)
            context = tf.distribute.get_replica_context()
            mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, [w, b]))
            w.assign_sub(20 * mean[0])
            b.assign_sub(20 * mean[1])
            return loss

        step = tf.function(lambda batch: strategy.run(one, batch))
        for batch in strategy.experimental_distribute_dataset(data):
            losses = strategy.experimental_local_results(step(batch))
        return [float(loss) for loss in losses]

    try:
        tt.CrossDeviceOps("int8+ef")
        refused = ""
    except ValueError as error:
        refused = str(error)
    plain = tf.distribute.ReductionToOneDevice()
    codecs = [tt.CrossDeviceOps("none"), tt.CrossDeviceOps("int8")]
    large = tf.fill([1000], tf.constant(40000.0, tf.float16))
    large = tf.concat([large, -large, large / 2], 0)
    sums = tt.CrossDeviceOps("int8", 1)._total([large, large]).numpy()
    assert sums[::1000].tolist()[:2] == [float("inf"), -float("inf")]
    assert abs(sums[2500] - 40000) < 500
    print(json.dumps([refused, *[train(one) for one in (plain, *codecs)]]))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(
    folder: pathlib.Path,
    script: str,
    *arguments: str,
    environments: Sequence[dict[str, str]] = ({},),
) -> list[tuple[int, str, str]]:
    """A process with each environment; exit status, output, errors."""
    path = folder / "script.py"
    path.write_text("import json\n" + textwrap.dedent(script))
    common = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TERSOR_SECRET": SECRET}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(path), *arguments],
            env={**common, **one},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for one in environments
    ]
    outputs = [one.communicate(timeout=SECONDS) for one in ranks]
    return [(one.returncode, *output) for one, output in zip(ranks, outputs, strict=True)]


def of_two() -> list[dict[str, str]]:
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**world, "RANK": str(rank)} for rank in range(2)]


def told(results: list[tuple[int, str, str]]) -> list[list]:  # type: ignore[type-arg]
    assert [status for status, *_ in results] == [0] * len(results), results[0][2][-2000:]
    return [json.loads(output.splitlines()[-1]) for _, output, _ in results]


def test_keras_ranks_stay_equal_with_fewer_bytes(tmp_path: pathlib.Path) -> None:
    plain = told(run(tmp_path, KERAS, "none", environments=of_two()))
    short = told(run(tmp_path, KERAS, "int8+ef", environments=of_two()))
    for first, second in (plain, short):
        assert first[1] == second[1]
    assert short[0][0] == pytest.approx(plain[0][0], rel=0.01)
    assert plain[0][2] > 2.5 * short[0][2]


def test_unequal_variables_raise_on_all_ranks_in_the_first_step(tmp_path: pathlib.Path) -> None:
    ranks = run(tmp_path, KERAS, "int8+ef", "random start", environments=of_two())
    assert all(status != 0 for status, *_ in ranks)
    for _, _, errors in ranks:
        assert "the ranks begin with different values of " in errors
        assert "/kernel" in errors
        assert "broadcast_variables(model.weights)" in errors


def test_documented_program_runs(tmp_path: pathlib.Path) -> None:
    before = """
import keras, numpy as np
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(256), keras.layers.Dense(1)])
"""
    after = """
x = np.random.default_rng(tersor.tensorflow.transport().rank).standard_normal((64, 32))
model.fit(x, x[:, 0], verbose=0)
digest = [float(np.abs(one.numpy()).sum()) for one in model.trainable_variables]
print(json.dumps([*digest, optimizer.reducer.statistics().steps]))
tersor.tensorflow.shutdown()
"""
    script = before + programs("docs/systems/tensorflow.md", "tensorflow")[0] + after
    first, second = told(run(tmp_path, script, environments=of_two()))
    assert first == second
    assert first[-1] == 2


FROZEN = """
    import numpy as np
    import tensorflow as tf
    import tersor.tensorflow as tt
    transport = tt.init(timeout=60)
    reduce = tt.Reducer(codec="int8+ef", timeout=20.0)
    generator = np.random.default_rng(transport.rank)
    for step in range(4):
        gradients = [tf.constant(generator.standard_normal((90, 100)), tf.float32) for _ in "ab"]
        if step == 2:
            gradients[0] = None
        reduced = reduce(gradients, ["a", "b"])
    print(json.dumps([[one is None for one in reduced], float(tf.reduce_sum(reduced[0]))]))
    policy = tf.keras.config.dtype_policy()
    refused = []
    for name in ("mixed_float16", policy.name):
        optimizer = tf.keras.optimizers.SGD()
        if name == policy.name:
            optimizer.build([tf.Variable([1.0])])
        tf.keras.config.set_dtype_policy(name)
        try:
            tt.DistributedOptimizer(optimizer)
        except ValueError as error:
            refused.append(str(error))
    print(json.dumps([[one is None for one in reduced], float(tf.reduce_sum(reduced[0])), refused]))
    tt.shutdown()
"""


def test_gradients_may_be_missing_for_a_step(tmp_path: pathlib.Path) -> None:
    first, second = told(run(tmp_path, FROZEN, environments=of_two()))
    assert first == second
    assert first[0] == [False, False]
    assert "mixed_bfloat16" in first[2][0]
    assert "has not trained yet" in first[2][1]


SETTINGS = """
    import keras
    import numpy as np
    import tersor.tensorflow as tt
    tt.init(timeout=60)

    class Boosted(keras.optimizers.SGD):  # without get_config()
        def __init__(self, boost):
            super().__init__(0.5)
            self.boost = boost
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient * self.boost, variable, learning_rate)

    decaying = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    decaying.exclude_from_weight_decay(var_names=["bias"])
    found = []
    for optimizer in (Boosted(10.0), decaying):
        made = tt.DistributedOptimizer(optimizer, codec="none", timeout=20.0)
        assert made is optimizer and isinstance(made, keras.optimizers.Optimizer)
        variable = keras.Variable(np.ones(4, "f4"), name="bias")
        made.build([variable])
        made.apply([np.full(4, float(made is not decaying), "f4")], [variable])
        found.append(float(variable.numpy()[0]))
    try:
        tt.DistributedOptimizer(Boosted(1.0), codec="none")
        tt.DistributedOptimizer(made)
    except ValueError as error:
        found.append(str(error))
    try:
        keras.optimizers.LossScaleOptimizer(made)
    except ValueError as error:
        found.append(str(error))
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=2.0)
    scaled = tt.DistributedOptimizer(scaled, codec="none", timeout=20.0)
    variable = keras.Variable(np.zeros(4, "f4"), name="w")
    scaled.build([variable])
    for value in (float("inf") if tt.transport().rank else 1.0, 1.0):
        scaled.apply([np.full(4, value, "f4")], [variable])
    found.append(float(variable.numpy()[0]))
    print(json.dumps(found))
    tt.shutdown()
"""


def test_an_optimizer_retains_all_settings(tmp_path: pathlib.Path) -> None:
    first, second = told(run(tmp_path, SETTINGS, environments=of_two()))
    assert first == second
    assert first[:2] == [-4.0, 1.0]
    assert first[2] == "pass an optimizer that has not trained yet, and only once"
    assert "pass a LossScaleOptimizer to DistributedOptimizer instead" in first[3]
    assert first[4] == -1.0


RESUMED = """
    import numpy as np
    import tensorflow as tf
    import tersor.tensorflow as tt
    transport = tt.init(timeout=60)

    def made(is_weighted):
        optimizer = tf.keras.optimizers.SGD(1.0)
        options = {"codec": "int4+ef", "weighted": is_weighted, "timeout": 20.0}
        return tt.DistributedOptimizer(optimizer, **options)

    def train(optimizer, variable, steps, is_weighted):
        for step in steps:
            draw = np.random.default_rng(10 * step + transport.rank)
            if is_weighted:
                optimizer.reducer.weigh(1 + transport.rank)
            optimizer.apply([tf.constant(draw.standard_normal((90, 100)), tf.float32)], [variable])

    equal = []
    for is_weighted in (False, True):
        first, second = made(is_weighted), made(is_weighted)
        variable = tf.keras.Variable(np.zeros((90, 100), "f4"), name="w")
        train(first, variable, range(3), is_weighted)
        state, copy = first.reducer.save_state(), tf.keras.Variable(variable.numpy(), name="w")
        second.reducer.load_state(state)
        equal.append(second.reducer.save_state() == state)
        train(first, variable, range(3, 6), is_weighted)
        train(second, copy, range(3, 6), is_weighted)
        equal.append(bool(np.array_equal(variable.numpy(), copy.numpy())))
    sums = tt.Reducer(codec="int8", reduction="sum")
    large = tf.fill([100, 1000], tf.constant(6e4, tf.float16))
    (total,) = sums([tf.concat([large, -large], 0)], ["large"])
    equal.append(total.numpy()[[0, -1], 0].tolist() == [float("inf"), -float("inf")])
    try:
        made(False).reducer.load_state(b"no state")
    except ValueError as error:
        equal.append(str(error))
    print(json.dumps(equal))
    tt.shutdown()
"""


def test_a_new_optimizer_resumes_from_a_state(tmp_path: pathlib.Path) -> None:
    first, second = told(run(tmp_path, RESUMED, environments=of_two()))
    assert first == second
    assert first[:5] == [True] * 5
    assert "not a reducer's state" in first[5]


SAVED = """
    import os
    import sys
    import keras, numpy as np
    import tersor.tensorflow as tt
    transport = tt.init(timeout=60)

    def made():
        return tt.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), codec="none")

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    tt.broadcast_variables(model.weights)
    model.compile(optimizer=made(), loss="mse", jit_compile=False)
    model.fit(np.ones((8, 4), "f4"), np.ones((8, 2), "f4"), verbose=0)
    path = os.path.join(sys.argv[1], str(transport.rank))
    model.save(path + ".keras")
    model.save_weights(path + ".weights.h5")
    try:
        keras.models.load_model(path + ".keras")
        found = [""]
    except ValueError as error:
        found = [str(error)]
    loaded = keras.models.load_model(path + ".keras", compile=False)
    found.append(bool(np.array_equal(loaded.weights[0].numpy(), model.weights[0].numpy())))
    loaded.compile(optimizer=made(), loss="mse", jit_compile=False)
    loaded.optimizer.build(loaded.trainable_variables)
    loaded.load_weights(path + ".weights.h5")
    found.append(int(loaded.optimizer.iterations))
    print(json.dumps(found))
    tt.shutdown()
"""


def test_saved_model_requires_recompilation(tmp_path: pathlib.Path) -> None:
    first, second = told(run(tmp_path, SAVED, str(tmp_path), environments=of_two()))
    assert first == second
    assert "load it with compile=False" in first[0]
    assert first[1:] == [True, 1]


WEIGHTED = """
    import tensorflow as tf
    import tersor.tensorflow as tt
    transport = tt.init(timeout=60)
    reduce = tt.Reducer(codec="none", weighted=True, timeout=20.0)
    means = []
    for samples in ((1, 3), (2, 0)):
        reduce.core.weigh(samples[transport.rank])
        (mean,) = reduce([tf.fill(5, 1.0 + transport.rank)], ["x"])
        means.append(float(mean[0]))
    optimizer = tf.keras.optimizers.SGD(1.0)
    optimizer = tt.DistributedOptimizer(optimizer, codec="none", weighted=True)
    weights = tf.keras.Variable(tf.zeros(5))
    for samples in ((1, 3), (3, 1)):
        optimizer.reducer.weigh(samples[transport.rank])
        optimizer.apply([tf.fill(5, 1.0 + transport.rank)], [weights])
        means.append(float(weights.numpy()[0]))
    raw = [tf.Variable(tf.zeros(5)), tf.Variable(tf.zeros(5))]
    optimizer = tt.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), codec="none")
    optimizer.apply_gradients([(tf.fill(5, 1.0 + transport.rank), one) for one in raw])
    means += [float(one[0]) for one in raw]
    print(json.dumps(means))
    tt.shutdown()
"""


def test_weighted_mean_uses_sample_counts(tmp_path: pathlib.Path) -> None:
    first, second = told(run(tmp_path, WEIGHTED, environments=of_two()))
    assert first == second == [1.75, 1.0, -1.75, -3.0, -1.5, -1.5]


def test_error_names_the_terminated_rank(tmp_path: pathlib.Path) -> None:
    left, died = run(tmp_path, KERAS, "int8", "dies", environments=of_two())
    assert died[0] == 3
    assert left[0] != 0
    assert "TransportError" in left[2]
    assert "rank 1" in left[2]


def test_a_custom_loop_under_a_strategy(tmp_path: pathlib.Path) -> None:
    workers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    first, second = told(
        run(
            tmp_path,
            LOOP,
            environments=[
                {
                    "TF_CONFIG": json.dumps(
                        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
                    )
                }
                for rank in range(2)
            ],
        )
    )
    assert first[2] == second[2]
    assert first[1] < first[0]


def test_mirrored_strategy_cross_device_ops(tmp_path: pathlib.Path) -> None:
    ((refused, plain, none, int8),) = told(run(tmp_path, MIRRORED))
    assert "leave out +ef" in refused
    assert none == plain
    assert int8 != plain
    assert int8 == pytest.approx(plain, rel=1e-3)


def test_untested_tensorflow_version_is_reported(tmp_path: pathlib.Path) -> None:
    script = "import tensorflow as tf\ntf.__version__ = '2.99.0'\nimport tersor.tensorflow"
    ((status, _, errors),) = run(tmp_path, script)
    assert status == 0
    assert errors.count("TensorFlow 2.99.0: tested with version 2.21 only") == 1


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        (
            {"TERSOR_SECRET": "short"},
            "the secret has 5 bytes: give at least 16, the same on all ranks (TERSOR_SECRET",
        ),
        ({"RANK": "0", "WORLD_SIZE": "2"}, r"needs address="),
    ],
)
def test_invalid_settings_raise(
    tmp_path: pathlib.Path, environment: dict[str, str], error: str
) -> None:
    world = of_two()[0] if "RANK" not in environment else {}
    script = "import tersor.tensorflow as tt\ntt.init(timeout=1)"
    ((status, _, errors),) = run(tmp_path, script, environments=[{**world, **environment}])
    assert status != 0
    assert error in errors
