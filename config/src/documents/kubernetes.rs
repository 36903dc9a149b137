//! Kubernetes and etcd: known, so that the output of `talosctl gen config` loads. Which fields are served, and where, is in `settings`.

use super::super::shape::{Field, Kind, Shape, Shape::*, TEXTS, kind, opt, req};

const IMAGE: Field = req("image", Text);
const EXTRA_ARGS: Field = opt("extraArgs", Options);
const RESOURCES: Field = opt("resources", Opaque);
const ENABLED: Field = opt("enabled", Bool);

const WEB: Shape = Url(&["http", "https"]);
const CIDRS: Shape = List(&Cidr);
const CA: &[Field] = &[
    opt("issuingCA", Fields(&[opt("cert", Text), opt("key", Text)])),
    opt("acceptedCAs", TEXTS),
];

pub(super) const KINDS: &[Kind] = &[
    kind(
        "DiscoveryIdentityConfig",
        &[req("clusterID", Text), req("clusterSecret", Text)],
    ),
    kind(
        "DiscoveryServiceConfig",
        &[
            req("name", Text),
            req("endpoint", Url(&["http", "https", "grpc"])),
        ],
    ),
    kind(
        "KubeAdmissionControlConfig",
        &[opt("name", Text), opt("configuration", OpaqueMap)],
    ),
    kind("KubeAggregatorCAConfig", CA),
    kind(
        "KubeAPIServerConfig",
        &[
            IMAGE,
            EXTRA_ARGS,
            opt("env", TextMap),
            RESOURCES,
            opt("apiPort", Int),
            opt("certExtraSANs", TEXTS),
            opt("startupProbes", Bool),
        ],
    ),
    kind("KubeAPIServerCAConfig", CA),
    kind("KubeAuditPolicyConfig", &[opt("configuration", OpaqueMap)]),
    kind("KubeAuthenticationConfig", &[opt("configuration", Opaque)]),
    kind(
        "KubeAuthorizerConfig",
        &[
            opt("name", Text),
            opt("type", OneOf(&["Node", "RBAC", "Webhook"])),
            opt("webhook", Opaque),
        ],
    ),
    kind(
        "KubeClusterConfig",
        &[req("clusterName", Text), req("endpoint", Url(&["https"]))],
    ),
    kind(
        "KubeControllerManagerConfig",
        &[ENABLED, IMAGE, EXTRA_ARGS, opt("env", TextMap), RESOURCES],
    ),
    kind("KubeCoreDNSConfig", &[ENABLED, opt("image", Text)]),
    kind(
        "KubeCredentialProviderConfig",
        &[opt("configuration", Opaque)],
    ),
    kind("KubeEtcdEncryptionConfig", &[opt("config", OpaqueMap)]),
    kind(
        "KubeExternalManifestConfig",
        &[req("name", Text), opt("headers", TextMap), req("url", WEB)],
    ),
    kind(
        "KubeFlannelCNIConfig",
        &[
            opt("backendType", Text),
            opt("backendPort", Int),
            opt("backendMTU", Int),
            opt("backendExtraConfig", Opaque),
            RESOURCES,
            opt("extraArgs", TEXTS),
            opt("kubeNetworkPoliciesEnabled", Bool),
        ],
    ),
    kind(
        "KubeInlineManifestConfig",
        &[req("name", Text), req("manifest", Text)],
    ),
    kind(
        "KubeletConfig",
        &[
            IMAGE,
            opt("config", OpaqueMap),
            EXTRA_ARGS,
            opt("clusterDNS", TEXTS),
            opt("defaultRuntimeSeccompProfileEnabled", Bool),
        ],
    ),
    kind(
        "KubePrismConfig",
        &[req("port", Int), opt("tlsServerName", Text)],
    ),
    kind(
        "KubeNetworkConfig",
        &[
            opt("dnsDomain", Text),
            req("podSubnets", CIDRS),
            req("serviceSubnets", CIDRS),
            opt("nodeCIDRMaskSizeIPv4", Int),
            opt("nodeCIDRMaskSizeIPv6", Int),
        ],
    ),
    kind(
        "KubeNodeConfig",
        &[
            opt("skipNodeRegistration", Bool),
            opt("registerWithFQDN", Bool),
            opt("nodeIP", Fields(&[opt("validSubnets", TEXTS)])),
            opt("labels", TextMap),
            opt("annotations", TextMap),
            opt("taints", TextMap),
        ],
    ),
    kind(
        "KubeProxyConfig",
        &[
            ENABLED,
            IMAGE,
            opt("mode", Text),
            opt("config", Opaque),
            EXTRA_ARGS,
            RESOURCES,
        ],
    ),
    kind(
        "KubeSchedulerConfig",
        &[
            ENABLED,
            IMAGE,
            opt("config", Opaque),
            EXTRA_ARGS,
            opt("env", TextMap),
            RESOURCES,
        ],
    ),
    kind(
        "KubeServiceAccountConfig",
        &[
            req(
                "issuer",
                Fields(&[req("privateKey", Text), req("issuerURL", WEB)]),
            ),
            opt(
                "accepted",
                Fields(&[
                    opt("publicKeys", TEXTS),
                    opt("issuers", List(&WEB)),
                    opt("audiences", TEXTS),
                ]),
            ),
        ],
    ),
    kind(
        "KubeStaticPodConfig",
        &[req("name", Text), req("pod", Opaque)],
    ),
    kind(
        "KubeTalosAPIAccessConfig",
        &[
            opt("allowedRoles", TEXTS),
            opt("allowedKubernetesNamespaces", TEXTS),
        ],
    ),
];
