"""Where settings come from, and which is the stronger."""

from dataclasses import fields
from pathlib import Path

import pytest

from strata_cli.config import EngineConfig, SamplingParams
from strata_cli.errors import UsageError
from strata_cli.options import EngineFlags, SamplingFlags
from strata_cli.settings import SAMPLING_FIELDS, profiles, read_profile, resolve


@pytest.fixture
def config(tmp_path):
    return tmp_path / "config.toml"


def test_precedence(config):
    config.write_text('model = "c"\nprofile = "strata-b"\nbatch = 5\nspec = 3\n[sampling]\ntop_k = 7\nmin_p = 0.2\n')
    env = {"STRATA_BATCH": "6", "STRATA_SPEC": "2", "STRATA_TOP_K": "8", "STRATA_MODEL": "e"}
    settings = resolve({"spec": 1, "model": "f", "batch": None, "stop": []}, env, config)
    assert (settings.engine.spec, settings.sources["spec"].source) == (1, "--spec")
    assert (settings.engine.batch, settings.sources["batch"].source) == (6, "STRATA_BATCH")
    assert (settings.engine.spec_min_p, settings.sources["spec_min_p"].source) == (0.5, "profile strata-b")
    assert settings.engine.accept == "coupled"
    assert "accept" not in settings.sources
    assert (settings.sampling["top_k"], settings.sampling["min_p"]) == (8, 0.2)
    assert settings.sources["min_p"].source == str(config)
    assert settings.model == "f"
    assert resolve({}, {}, config).engine.spec == 3
    assert resolve({}, {}, config).model == "c"


def test_without_anything(config):
    settings = resolve({}, {}, config)
    assert settings.engine == EngineConfig()
    assert (settings.model, settings.profile, settings.sampling, settings.aliases) == ("demo", None, {}, {})


def test_false_and_zero_are_values(config):
    settings = resolve({"spec": 0, "prefix_cache": False, "temperature": 0.0}, {"STRATA_MTP_VARLEN": "false"}, config)
    assert settings.engine.spec == 0
    assert settings.engine.prefix_cache is False
    assert settings.engine.mtp_varlen is False
    assert settings.sampling == {"temperature": 0.0}


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("STRATA_STOP", "end", ("end",)),
        ("STRATA_STOP", '["a", "b"]', ("a", "b")),
        ("STRATA_TEMPERATURE", "0.25", 0.25),
        ("STRATA_SEED", "18446744073709551615", 2**64 - 1),
        ("STRATA_IGNORE_EOS", "true", True),
    ],
)
def test_environment_values(config, variable, text, value):
    assert list(resolve({}, {variable: text}, config).sampling.values()) == [value]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("spce = 4", 'unknown setting "spce" (did you mean spec?)'),
        ("spec = 17", "spec = 17 is out of range"),
        ('mtp = ""', "mtp = '' is out of range"),
        ('spec = "4"', "spec = '4'"),
        ("spec = 4.5", "spec = 4.5"),
        ("[sampling]\ntemp = 1", 'unknown sampling setting "temp"'),
        ("[sampling]\ntop_p = 2.0", "top_p = 2.0 is out of range"),
        ("sampling = 3", "sampling = 3 is not a table"),
        ("spec = ", "not valid TOML"),
        ("[aliases]\nbig = 3", "[aliases]"),
        ('plan = "row"', "plan = 'row' is out of range"),
    ],
)
def test_faults_name_their_file(config, text, what):
    config.write_text(text)
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, config)
    assert what in caught.value.what
    assert caught.value.what.startswith(str(config))


def test_a_fault_is_found_even_where_a_flag_is_stronger(config):
    config.write_text("spec = 17")
    with pytest.raises(UsageError, match="spec = 17"):
        resolve({"spec": 1}, {}, config)


def test_profiles_are_read_and_differ():
    assert set(profiles()) == {"strata-a", "strata-b", "24g", "16g", "cpu"}
    seen = {}
    for name in profiles():
        settings = resolve({"profile": name}, {}, Path("/nowhere"))
        assert all(s.source in (f"profile {name}", "--profile") for s in settings.sources.values())
        seen[name] = settings.engine
    assert len(set(map(str, seen.values()))) == 5
    for lane in ("strata-a", "strata-b"):
        engine = seen[lane]
        assert (engine.batch, engine.spec, engine.spec_min_p, engine.batch_groups) == (4, 4, 0.5, 1)
        assert (engine.mtp_varlen, engine.vram_reserve_mib) == (True, 1600)


def test_a_profile_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("batch = 2\n")
    assert read_profile(str(path)).values == {"batch": 2}
    path.write_text('model = "x"\n')
    with pytest.raises(UsageError, match='unknown setting "model"'):
        read_profile(str(path))
    with pytest.raises(UsageError, match="did you mean 24g"):
        read_profile("24")


def test_every_field_has_its_flag():
    assert set(EngineFlags.__annotations__) == {f.name for f in fields(EngineConfig)}
    assert set(SamplingFlags.__annotations__) == set(SAMPLING_FIELDS)
    assert set(SAMPLING_FIELDS) < {f.name for f in fields(SamplingParams)}


def test_description_names_every_setting(config):
    text = resolve({"spec": 2}, {}, config).describe()
    names = [line.split()[0] for line in text.splitlines()]
    assert names == ["model", "profile", *(f.name for f in fields(EngineConfig)), *SAMPLING_FIELDS]
