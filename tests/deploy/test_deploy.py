"""The files under deploy/ are what their readers take: schemas, known metrics, pinned versions, no secrets."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from kuberay_schemas import check_manifest

from cluster.driver.pool import OF_LANDSCAPE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
# As they stand in the source; tests/cluster/driver/test_metrics.py finds them on the port of a real Ray.
METRICS = set(re.findall(r'"(landscape_\w+)"', (ROOT / "cluster" / "driver" / "pool.py").read_text()))


@pytest.mark.parametrize(
    ("file", "kind"), [("kuberay-raycluster.yaml", "raycluster"), ("examples/rayjob.yaml", "rayjob")]
)
def test_kuberay_accepts_the_manifests(file, kind):
    document = list(yaml.safe_load_all((DEPLOY / file).read_text()))[-1]
    check_manifest(kind, document)
    assert len(document["metadata"]["name"]) <= 47
    assert "kueue.x-k8s.io/queue-name" in document["metadata"]["labels"]
    cluster = document["spec"].get("rayClusterSpec", document["spec"])
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["rayVersion"] == version("ray")
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_cluster_launcher_accepts_its_file():
    validators = pytest.importorskip("jsonschema")
    schema = json.loads(files("ray.autoscaler").joinpath("ray-schema.json").read_text())
    launcher = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())
    validators.validate(launcher, schema)
    starts = launcher["head_start_ray_commands"] + launcher["worker_start_ray_commands"]
    assert all("RAY_AUTH_MODE=token" in each for each in starts if "ray start" in each)


def test_the_dashboard_and_the_scrape_read_the_metrics_that_are_exported():
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    read = set(re.findall(r"ray_(landscape_\w+)", " ".join(expressions)))
    assert read == METRICS
    variables = {one["name"]: one["query"] for one in dashboard["templating"]["list"]}
    for expression in expressions:
        for selector in re.findall(r"ray_landscape_\w+\{(.*?)\}", expression):
            labels = dict(re.findall(r'(\w+)=~"\$(\w+)"', selector))
            assert {"run", "user"} <= labels.keys() <= {*OF_LANDSCAPE, "SessionName"}
            assert set(labels.values()) <= variables.keys()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for expression in expressions:
        assert expression.count("(") == expression.count(")")
    (scrape,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    (kept,) = [rule for rule in scrape["metric_relabel_configs"] if rule["action"] == "keep"]
    for name in METRICS:
        assert re.fullmatch(kept["regex"], f"ray_{name}")


def test_the_container_copies_what_the_package_needs_and_runs_as_a_user():
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert {"pyproject.toml", "README.md", "LICENSE", "deploy/constraints.txt", "landscape", "cluster"} == set(copied)
    assert all((ROOT / each).exists() for each in copied)
    assert [line for line in lines if line.startswith("USER")] == ["USER 1000"]


def test_the_image_has_what_its_documentation_runs_in_the_versions_that_are_tested():
    (extras,) = re.findall(r"'\.\[([\w,-]+)\]'", (DEPLOY / "Containerfile").read_text())
    assert {"object-store", "recipes", "images", "train", "serve", "page"} <= set(extras.split(","))
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (DEPLOY / "constraints.txt").read_text().splitlines()
    }
    for extra in extras.split(","):
        for requirement in offered[extra]:
            assert re.split(r"[\[><=]", requirement)[0].lower() in pinned, requirement


def test_no_file_holds_a_token_or_a_key():
    secret = re.compile(r"\b[0-9a-f]{32,}\b|AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY", re.IGNORECASE)
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            assert not secret.search(path.read_text()), path
