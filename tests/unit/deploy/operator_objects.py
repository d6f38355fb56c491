"""Check that an object of KEDA or of the Prometheus operator is one that their custom resource definitions accept.

The fields, types and patterns are those of ``keda.sh/v1alpha1`` (kedacore/keda, config/crd/bases, as of
controller-gen 0.16) and ``monitoring.coreos.com/v1`` (prometheus-operator 0.84, example/prometheus-operator-crd), told
again for the parts that a chart of a service can meaningfully use: a field that is not told here is refused, also where
a definition would take it. Parameters of KEDA's ``postgresql`` scaler are from its documentation.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

Duration = Annotated[
    str, StringConstraints(pattern=r"^(0|([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?)$")
]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Texts = dict[str, Annotated[str, Field(strict=True)]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Metadata(_Strict):
    name: str
    labels: Texts = {}
    annotations: Texts = {}
    namespace: str | None = None


class _Selector(_Strict):
    matchLabels: Texts = {}
    matchExpressions: list[dict[str, Any]] = []


class _SecretKey(_Strict):
    key: str
    name: str
    optional: bool = False


class _Authorization(_Strict):
    credentials: _SecretKey
    type: str = "Bearer"


class _Endpoint(_Strict):
    port: str
    path: str = "/metrics"
    interval: Duration = "0"
    scrapeTimeout: Duration = "0"
    scheme: Literal["http", "https"] = "http"
    authorization: _Authorization | None = None
    honorLabels: bool = False


class _ServiceMonitorSpec(_Strict):
    selector: _Selector
    endpoints: Annotated[list[_Endpoint], Field(min_length=1)]
    jobLabel: str | None = None
    namespaceSelector: dict[str, Any] = {}


class _Rule(_Strict):
    alert: str | None = None
    record: str | None = None
    expr: str | int
    annotations: Texts = {}
    labels: Texts = {}
    keep_firing_for: Duration | None = None
    for_: Duration | None = Field(default=None, alias="for")


class _Group(_Strict):
    name: Annotated[str, Field(min_length=1)]
    rules: list[_Rule]
    interval: Duration | None = None


class _PrometheusRuleSpec(_Strict):
    groups: list[_Group]


class _PostgresMetadata(_Strict):
    query: str
    targetQueryValue: Annotated[str, StringConstraints(pattern=r"^[0-9.]+$")]
    activationTargetQueryValue: str | None = None
    connectionFromEnv: str | None = None


class _Reference(_Strict):
    name: str
    kind: Literal["TriggerAuthentication", "ClusterTriggerAuthentication"] = "TriggerAuthentication"


class _Trigger(_Strict):
    type: Literal["postgresql"]
    metadata: _PostgresMetadata
    authenticationRef: _Reference
    name: str | None = None
    metricType: Literal["AverageValue", "Value"] = "AverageValue"
    useCachedMetrics: bool = False


class _Target(_Strict):
    name: str
    apiVersion: str = "apps/v1"
    kind: str = "Deployment"
    envSourceContainerName: str | None = None


class _ScaledObjectSpec(_Strict):
    scaleTargetRef: _Target
    triggers: Annotated[list[_Trigger], Field(min_length=1)]
    pollingInterval: Count = 30
    cooldownPeriod: Count = 300
    initialCooldownPeriod: Count = 0
    idleReplicaCount: Count | None = None
    minReplicaCount: Count = 0
    maxReplicaCount: Count = 100
    fallback: dict[str, Any] | None = None
    advanced: dict[str, Any] | None = None


class _SecretTarget(_Strict):
    parameter: Literal["connection", "host", "port", "userName", "password", "dbName", "sslmode"]
    name: str
    key: str


class _TriggerAuthenticationSpec(_Strict):
    secretTargetRef: Annotated[list[_SecretTarget], Field(min_length=1)]


class _Object(_Strict):
    apiVersion: str
    kind: str
    metadata: _Metadata


class _ServiceMonitor(_Object):
    spec: _ServiceMonitorSpec


class _PrometheusRule(_Object):
    spec: _PrometheusRuleSpec


class _ScaledObject(_Object):
    spec: _ScaledObjectSpec


class _TriggerAuthentication(_Object):
    spec: _TriggerAuthenticationSpec


DEFINED: dict[tuple[str, str], type[_Object]] = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _ServiceMonitor,
    ("monitoring.coreos.com/v1", "PrometheusRule"): _PrometheusRule,
    ("keda.sh/v1alpha1", "ScaledObject"): _ScaledObject,
    ("keda.sh/v1alpha1", "TriggerAuthentication"): _TriggerAuthentication,
}


def problems(found: dict[str, Any]) -> list[str]:
    """Return the faults of an object of a custom kind, with its place."""
    model = DEFINED.get((found["apiVersion"], found["kind"]))
    if model is None:
        return [f"nobody knows {found['kind']} of {found['apiVersion']}"]
    try:
        model.model_validate(found)
    except ValidationError as error:
        return [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
    return []
