"""The Helm chart as rendered: who may hold what, who reaches whom, and that nothing names what does not exist."""

from __future__ import annotations

import copy
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from agents.llm.models import Model
from cupilot.embedded.roles import Role, Schema
from cupilot.settings import Settings
from tests.unit.deploy import operator_objects
from tests.unit.deploy.kubernetes_objects import BUILT_IN, problems
from tests.unit.deploy.rendering import RENDERED, of_kind, rendered

ROOT = Path(__file__).parents[3]
HELM = ROOT / "deploy/helm"
CHART = HELM / "cupilot"
OBJECTS = [
    pytest.param(found, id=f"{name}: {found['kind']} {found['metadata']['name']}")
    for name, objects in RENDERED.items()
    for found in objects
]
WORKLOADS = [manifest for manifest in OBJECTS if manifest.values[0]["kind"] in ("Deployment", "Job")]  # type: ignore[index]
ALERTS = yaml.safe_load((CHART / "files/alerts.yaml").read_text())["groups"][0]["rules"]
SECRETS = {
    f"CUPILOT_{name.upper()}" for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)
}


def pod(workload: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def container(workload: dict[str, Any]) -> dict[str, Any]:
    [only] = pod(workload)["containers"]
    found: dict[str, Any] = only
    return found


def values(*names: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    for name in names:
        _merge(found, yaml.safe_load((HELM / "examples" / name).read_text()))
    return found


def _merge(into: dict[str, Any], given: dict[str, Any]) -> None:
    for name, value in given.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value


def test_the_page_counts_the_objects_that_were_rendered() -> None:
    said = re.search(r"(\d+) and (\d+) objects", (ROOT / "deploy/README.md").read_text())
    assert said is not None
    assert [int(count) for count in said.groups()] == [len(rendered(name)) for name in ("default", "everything")]


def test_traces_go_to_the_collector_that_is_named_and_nowhere_else() -> None:
    for name in ("default", "everything"):
        endpoint = values(*(["everything.yaml"] if name == "everything" else []))["traces"]["otlpEndpoint"]
        for workload in (manifest for manifest in rendered(name) if manifest["kind"] in ("Deployment", "Job")):
            given = {variable["name"]: variable.get("value") for variable in container(workload)["env"]}
            assert given.get("OTEL_EXPORTER_OTLP_ENDPOINT", "") == endpoint
            assert given.get("CUPILOT_TRACES", "off") == ("otlp" if endpoint else "off")
        out = [policy for policy in of_kind(name, "NetworkPolicy") if policy.endswith("-traces")]
        assert bool(out) == bool(endpoint)


WAYS_OUT = ("dns", "postgres", "redis", "chroma", "traces", "models", "receivers", "provider")
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize("names", [(), ("everything.yaml",)], ids=["default", "everything"])
def test_values_have_the_form_that_the_schema_asks_for(names: tuple[str, ...]) -> None:
    jsonschema.validate(values(*names), SCHEMA)


@pytest.mark.parametrize(
    "wrong",
    [
        {"imagee": {}},
        {"api": {"replicas": 0}},
        {"settings": {"DATABASE_URL": "postgresql://in-the-open"}},
        {"settings": {"OIDC_CLIENT_SECRET": "in the open"}},
        {"settings": {"LLM_API_KEY": "in the open, for every role"}},
        {"settings": {"CHROMA_URL": "http://chroma:8000"}},
        {"api": {"oidc": {"issuer": "http://id.example.org", "clientId": "cupilot"}}},
        {"api": {"oidc": {"issuer": "https://id.example.org", "clientId": "cupilot"}}},
        {"podSecurity": {"runAsUser": 0}},
        {"gpuWorkers": [{**values()["gpuWorkers"][0], "gpuResource": None}]},
        *({"networkPolicy": {server: {"to": []}}} for server in WAYS_OUT),
    ],
    ids=[
        "misspelt",
        "no API",
        "secret in values",
        "provider's secret in values",
        "model's key in values",
        "two addresses of Chroma",
        "provider without TLS",
        "no way back",
        "root",
        "cuda without a card",
        *WAYS_OUT,
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    given = copy.deepcopy(values())
    _merge(given, wrong)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(given, SCHEMA)


@pytest.mark.parametrize("found", [manifest for manifest in OBJECTS if manifest.values[0]["apiVersion"] in BUILT_IN])  # type: ignore[index]
def test_objects_are_valid_for_kubernetes(found: dict[str, Any]) -> None:
    assert problems(found) == []


@pytest.mark.parametrize(
    "found",
    [manifest for manifest in OBJECTS if manifest.values[0]["apiVersion"] not in BUILT_IN],  # type: ignore[index]
)
def test_objects_are_valid_for_keda_and_the_prometheus_operator(found: dict[str, Any]) -> None:
    assert operator_objects.problems(found) == []


@pytest.mark.parametrize(
    ("kind", "path", "value", "problem"),
    [
        ("ScaledObject", "spec.maxReplica", 2, "spec.maxReplica: Extra inputs are not permitted"),
        ("ScaledObject", "spec.pollingInterval", "15s", "spec.pollingInterval: Input should be a valid integer"),
        ("ScaledObject", "spec.triggers.0.metadata.targetQueryValue", 4, "Input should be a valid string"),
        ("TriggerAuthentication", "spec.secretTargetRef.0.parameter", "uri", "Input should be 'connection'"),
        ("ServiceMonitor", "spec.endpoints.0.interval", "15 s", "String should match pattern"),
        ("ServiceMonitor", "spec.endpoints.0.bearerToken", "x", "Extra inputs are not permitted"),
        ("PrometheusRule", "spec.groups.0.rules.0.for", "two minutes", "String should match pattern"),
    ],
)
def test_an_invalid_custom_object_is_seen(kind: str, path: str, value: object, problem: str) -> None:
    found = copy.deepcopy(next(manifest for manifest in rendered("everything") if manifest["kind"] == kind))
    *inner, last = path.split(".")
    place: Any = found
    for name in inner:
        place = place[int(name) if name.isdigit() else name]
    place[last] = value
    assert problem in " ".join(operator_objects.problems(found))


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("spec.replica", 2, "spec.replica: Extra inputs are not permitted"),
        ("spec.replicas", "2", "spec.replicas: Input should be a valid integer"),
        ("spec.replicas", True, "spec.replicas: Input should be a valid integer"),
        ("spec.selector", None, "spec.selector: "),
        (
            "spec.template.spec.containers",
            {"name": "api"},
            "spec.template.spec.containers: Input should be a valid list",
        ),
        ("spec.template.spec.volumes", [{"emptyDir": {}}], "spec.template.spec.volumes.0.name: Field required"),
        ("metadata.labels", {"app": 1}, "metadata.labels.app: Input should be a valid string"),
    ],
)
def test_an_invalid_object_is_seen(path: str, value: object, problem: str) -> None:
    found = copy.deepcopy(of_kind("default", "Deployment")["cupilot-api"])
    *inner, last = path.split(".")
    place = found
    for name in inner:
        place = place[name]
    place[last] = value
    assert problem in " ".join(problems(found))


def test_custom_resources_are_of_two_operators() -> None:
    others = {
        (manifest["apiVersion"], manifest["kind"]) for name in ("default", "everything") for manifest in rendered(name)
    }
    assert {pair for pair in others if pair[0] not in BUILT_IN} == {
        ("keda.sh/v1alpha1", "ScaledObject"),
        ("keda.sh/v1alpha1", "TriggerAuthentication"),
        ("monitoring.coreos.com/v1", "ServiceMonitor"),
        ("monitoring.coreos.com/v1", "PrometheusRule"),
    }


@pytest.mark.parametrize("workload", WORKLOADS)
def test_pods_are_confined(workload: dict[str, Any]) -> None:
    """Workloads keep the Pod Security Standard `restricted`, and have a read-only root file system."""
    security, inner = pod(workload)["securityContext"], container(workload)["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] > 0
    assert security["runAsGroup"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert inner == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(workload)["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod(workload).keys()
    assert all("hostPath" not in volume for volume in pod(workload)["volumes"])
    assert {"requests", "limits"} <= container(workload)["resources"].keys()
    assert "memory" in container(workload)["resources"]["limits"]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_commands_and_settings_exist_and_secrets_are_references(workload: dict[str, Any]) -> None:
    command = container(workload)["args"]
    assert command[:2] == ["python", "-m"]
    assert find_spec(f"{command[2]}.__main__") is not None
    ours = {f"CUPILOT_{name.upper()}" for name in Settings.model_fields}
    known = ours | {"POD_NAME", "OTEL_EXPORTER_OTLP_ENDPOINT", "CUPILOT_LLM_MODELS_FILE"}
    names = [variable["name"] for variable in container(workload)["env"]]
    assert len(set(names)) == len(names), "Kubernetes takes the last of a name, and server-side apply none"
    for variable in container(workload)["env"]:
        assert variable["name"] in known
        assert variable["name"] not in SECRETS or "secretKeyRef" in variable["valueFrom"]
    assert {"name": "CUPILOT_ENVIRONMENT", "value": "production"} in container(workload)["env"]


@pytest.mark.parametrize("workload", [manifest for manifest in WORKLOADS if manifest.values[0]["kind"] == "Deployment"])  # type: ignore[index]
def test_probes_mean_progress_and_every_deployment_has_a_budget(workload: dict[str, Any]) -> None:
    probe = container(workload)["livenessProbe"]
    if workload["metadata"]["name"].endswith("-api"):
        assert probe["httpGet"]["path"] == "/healthz"
        assert container(workload)["readinessProbe"]["httpGet"]["path"] == "/readyz"
        start = container(workload)["startupProbe"]
        assert start["periodSeconds"] * start["failureThreshold"] > Role.ready_seconds, "a busy node starts slowly"
    else:
        assert probe["exec"]["command"] == ["python", "-m", "workers", "health"]
    budgets = of_kind("everything", "PodDisruptionBudget")
    budget = budgets[workload["metadata"]["name"]]["spec"]
    assert budget["selector"] == workload["spec"]["selector"]


def test_replicas_are_spread_over_nodes() -> None:
    for role in ("api", "scheduler", "webhooks", "agents"):
        workload = of_kind("default", "Deployment")[f"cupilot-{role}"]
        [spread] = pod(workload)["topologySpreadConstraints"]
        assert spread["labelSelector"] == workload["spec"]["selector"]
        assert spread["whenUnsatisfiable"] == "ScheduleAnyway", "one node is a cluster, too"


def test_a_pod_is_a_card_and_drains_before_it_ends() -> None:
    deployments = of_kind("everything", "Deployment")
    gpu, cpu = deployments["cupilot-worker-h200"], deployments["cupilot-worker-cpu"]
    assert container(gpu)["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "nvidia.com/gpu" not in container(cpu)["resources"]["limits"]
    assert (container(gpu)["image"], container(cpu)["image"]) == (
        "registry.example.com/team/cupilot-gpu:1.2.3",
        "registry.example.com/team/cupilot-cpu:1.2.3",
    )
    assert gpu["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    [wait] = re.findall(r"--wait (\d+)", container(gpu)["lifecycle"]["preStop"]["exec"]["command"][2])
    assert int(wait) > Settings.model_fields["confirm_timeout_seconds"].default
    assert pod(gpu)["terminationGracePeriodSeconds"] > int(wait)


def test_an_agent_pod_ends_after_its_drain_and_a_whole_model_call() -> None:
    agents = of_kind("default", "Deployment")["cupilot-agents"]
    [wait] = re.findall(r"--wait (\d+)", container(agents)["lifecycle"]["preStop"]["exec"]["command"][2])
    call = Model.model_fields["timeout_seconds"].default
    assert pod(agents)["terminationGracePeriodSeconds"] > int(wait) + call, "the time runs from the drain's beginning"


def test_a_worker_is_not_process_one() -> None:
    """Process 1 ignores signals that it has no handler for yet, and is the parent of whatever killed programs leave."""
    for name, workload in of_kind("everything", "Deployment").items():
        works = name.startswith(("cupilot-agents", "cupilot-worker"))
        assert pod(workload).get("shareProcessNamespace", False) is works


def test_a_drain_before_the_end_of_a_container_ends_with_its_restart() -> None:
    for name, workload in of_kind("everything", "Deployment").items():
        if name.startswith(("cupilot-agents", "cupilot-worker")):
            words = container(workload)["lifecycle"]["preStop"]["exec"]["command"][2].split()
            assert "--until-restart" in words


def test_model_keys_go_to_agents_only() -> None:
    with_secret = {name for name, one in of_kind("everything", "Deployment").items() if "envFrom" in container(one)}
    assert with_secret == {"cupilot-agents"}
    for name, one in of_kind("everything", "Deployment").items():
        named = [variable["value"] for variable in container(one)["env"] if "LLM" in variable["name"]]
        files = [volume["secret"]["items"][0]["path"] for volume in pod(one)["volumes"] if "secret" in volume]
        places = [mount["mountPath"] for mount in container(one)["volumeMounts"] if mount["name"] == "models"]
        assert [f"{place}/{file}" for place, file in zip(places, files, strict=True)] == named
        assert bool(named) == (name == "cupilot-agents")


def test_only_the_api_knows_the_identity_provider_and_reaches_it() -> None:
    for name, workload in of_kind("everything", "Deployment").items():
        named = {variable["name"] for variable in container(workload)["env"] if "OIDC" in variable["name"]}
        ours = {f"CUPILOT_{field.upper()}" for field in Settings.model_fields if field.startswith("oidc_")}
        assert named == (ours if name == "cupilot-api" else set())
    assert "cupilot-api-provider" in of_kind("everything", "NetworkPolicy")
    assert "cupilot-api-provider" not in of_kind("default", "NetworkPolicy")
    assert not any(
        "OIDC" in variable["name"] for variable in container(of_kind("default", "Deployment")["cupilot-api"])["env"]
    )


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    def holds(one: dict[str, Any]) -> bool:
        assert one["operator"] == "NotIn"
        return labels.get(one["key"]) not in one["values"]

    return selector["matchLabels"].items() <= labels.items() and all(map(holds, selector.get("matchExpressions", [])))


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("worker-h200", {53, 5432, 6379, 4317}),
        ("worker-cpu", {53, 5432, 6379, 4317}),
        ("scheduler", {53, 5432, 6379, 4317}),
        ("api", {53, 5432, 6379, 8000, 443, 4317}),
        ("agents", {53, 5432, 6379, 8000, 443, 4317}),
        ("webhooks", {53, 5432, 443}),
        ("migrations", {53, 5432}),
    ],
)
def test_a_pod_reaches_what_its_role_needs_and_nothing_else(name: str, reached: set[int]) -> None:
    workloads = of_kind("everything", "Deployment") | of_kind("everything", "Job")
    labels = workloads[f"cupilot-{name}"]["spec"]["template"]["metadata"]["labels"]
    ports: set[int] = set()
    denied = False
    for policy in of_kind("everything", "NetworkPolicy").values():
        if _selects(policy["spec"]["podSelector"], labels):
            rules = policy["spec"].get("egress", [])
            denied |= not rules and policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
            ports |= {port["port"] for rule in rules for port in rule["ports"]}
    assert denied, "without a rule that denies, what no rule names is allowed"
    assert ports == reached


@pytest.mark.parametrize("policy", [manifest for manifest in OBJECTS if manifest.values[0]["kind"] == "NetworkPolicy"])  # type: ignore[index]
def test_no_way_out_leads_everywhere(policy: dict[str, Any]) -> None:
    """A rule without peers, or with an empty list of them, allows its ports on every host there is."""
    for rule in policy["spec"].get("egress", []):
        assert rule.get("to"), policy["metadata"]["name"]


@pytest.mark.parametrize("name", ["default", "everything"])
def test_workers_that_run_kernels_reach_no_address_outside_but_one_that_is_named(name: str) -> None:
    for workload in of_kind(name, "Deployment").values():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        if not labels["app.kubernetes.io/component"].startswith("worker-"):
            continue
        chosen = [
            manifest
            for manifest in of_kind(name, "NetworkPolicy").values()
            if _selects(manifest["spec"]["podSelector"], labels)
        ]
        peers = [peer for manifest in chosen for rule in manifest["spec"].get("egress", []) for peer in rule["to"]]
        assert peers
        outside = [peer["ipBlock"] for peer in peers if "ipBlock" in peer]
        assert outside == ([{"cidr": "10.1.0.5/32"}] if name == "everything" else [])


def test_every_role_of_the_compose_file_has_a_pod() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    commands = {tuple(service["command"][:4]) for service in services if "build" in service}
    objects = [*rendered("default"), *rendered("everything")]
    started = {
        tuple(container(manifest)["args"][:4]) for manifest in objects if manifest["kind"] in ("Deployment", "Job")
    }
    assert started == commands


def test_scaling_counts_what_waits_in_the_database() -> None:
    scaled = of_kind("everything", "ScaledObject")
    assert set(scaled) == {"cupilot-agents", "cupilot-worker-h200"}
    for name, one in scaled.items():
        assert one["spec"]["scaleTargetRef"]["name"] == name
        assert "replicas" not in of_kind("everything", "Deployment")[name]["spec"], "KEDA's business"
        [trigger] = one["spec"]["triggers"]
        assert "FROM steps JOIN jobs" in trigger["metadata"]["query"]
        reference = trigger["authenticationRef"]["name"]
        assert reference in of_kind("everything", "TriggerAuthentication")


def test_migrations_run_before_anything_else() -> None:
    [job] = of_kind("default", "Job").values()
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert container(job)["args"] == ["python", "-m", "migrations"]
    assert job["spec"]["activeDeadlineSeconds"] >= Schema.ready_seconds


def test_what_the_prometheus_operator_reads_has_the_labels_that_it_chooses_by() -> None:
    for kind in ("ServiceMonitor", "PrometheusRule"):
        [found] = of_kind("everything", kind).values()
        assert found["metadata"]["labels"]["release"] == "monitoring"


def _documented_metrics() -> set[str]:
    return set(re.findall(r"^\| `(cupilot_\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))


def _named(expression: str) -> set[str]:
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\bcupilot_\w+", expression)}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alerts_ask_for_metrics_that_exist_and_have_a_runbook(rule: dict[str, Any]) -> None:
    assert _named(rule["expr"]) <= _documented_metrics()
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (\w+)", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in [heading.lower() for heading in headings]
    assert anchor == rule["alert"].lower()


def test_a_rule_notices_that_nobody_shows_any_metric() -> None:
    """All others compare what is shown, and are silent where nothing is."""
    assert "absent(cupilot_build_info)" in [rule["expr"] for rule in ALERTS]


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    board = json.loads((CHART / "files/dashboard.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(asked) > 20
    assert set().union(*map(_named, asked)) <= _documented_metrics()
    identifiers = [panel["id"] for panel in board["panels"]]
    assert len(set(identifiers)) == len(identifiers)
