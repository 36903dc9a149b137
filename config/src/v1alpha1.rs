//! The document `version: v1alpha1`: the only one up to Talos 1.13, and the identity of the machine from 1.14 on.
//!
//! `machine:` and `cluster:` are known field by field. What Kubernetes' own programs read is not checked: they know it alone.

use super::shape::{Field, Kind, Shape, Shape::*, TEXTS, kind, opt, req};

/// The kind of this document. Compared by address: there is only one.
pub(super) static CONFIG: Kind = kind(
    "Config",
    &[
        opt("debug", Bool),
        opt("persist", Bool),
        req("machine", Fields(MACHINE)),
        opt("cluster", Fields(CLUSTER)),
    ],
);

const CERTIFICATE_AND_KEY: Shape = Fields(&[opt("crt", Text), opt("key", Text)]);
const ENABLED: Field = opt("enabled", Bool);
const IMAGE: Field = opt("image", Text);
const EXTRA_ARGS: Field = opt("extraArgs", Options);
const EXTRA_VOLUMES: Field = opt("extraVolumes", Opaque);
const ENV: Field = opt("env", TextMap);
const RESOURCES: Field = opt("resources", Opaque);

const MACHINE: &[Field] = &[
    req("type", OneOf(&["controlplane", "worker"])),
    opt("token", Text),
    req("ca", Fields(&[req("crt", Text), opt("key", Text)])),
    opt("acceptedCAs", List(&Fields(&[req("crt", Text)]))),
    opt("certSANs", TEXTS),
    opt(
        "controlPlane",
        Fields(&[
            opt("controllerManager", Fields(&[opt("disabled", Bool)])),
            opt("scheduler", Fields(&[opt("disabled", Bool)])),
        ]),
    ),
    opt("kubelet", Fields(KUBELET)),
    opt("pods", List(&Opaque)),
    opt("network", Fields(NETWORK)),
    opt(
        "disks",
        List(&Fields(&[
            opt("device", Text),
            opt(
                "partitions",
                List(&Fields(&[opt("size", Text), opt("mountpoint", Text)])),
            ),
        ])),
    ),
    opt("install", Fields(INSTALL)),
    opt(
        "files",
        List(&Fields(&[
            opt("content", Text),
            opt("permissions", Int),
            opt("path", Text),
            opt("op", OneOf(&["create", "overwrite", "append"])),
        ])),
    ),
    opt("env", TextMap),
    opt(
        "time",
        Fields(&[
            opt("disabled", Bool),
            opt("servers", TEXTS),
            opt("bootTimeout", Duration),
        ]),
    ),
    opt("sysctls", TextMap),
    opt("sysfs", TextMap),
    opt("registries", Fields(REGISTRIES)),
    opt("systemDiskEncryption", Opaque),
    opt("features", Fields(FEATURES)),
    opt("udev", Fields(&[opt("rules", TEXTS)])),
    opt(
        "logging",
        Fields(&[opt(
            "destinations",
            List(&Fields(&[
                opt("endpoint", Text),
                opt("format", OneOf(&["json_lines"])),
                opt("extraTags", TextMap),
            ])),
        )]),
    ),
    opt(
        "kernel",
        Fields(&[opt(
            "modules",
            List(&Fields(&[req("name", Text), opt("parameters", TEXTS)])),
        )]),
    ),
    opt(
        "seccompProfiles",
        List(&Fields(&[opt("name", Text), opt("value", Opaque)])),
    ),
    opt("baseRuntimeSpecOverrides", Opaque),
    opt("nodeLabels", TextMap),
    opt("nodeAnnotations", TextMap),
    opt("nodeTaints", TextMap),
];

const KUBELET: &[Field] = &[
    opt("image", Text),
    opt("clusterDNS", TEXTS),
    EXTRA_ARGS,
    opt("extraMounts", Opaque),
    opt("extraConfig", OpaqueMap),
    opt("credentialProviderConfig", Opaque),
    opt("defaultRuntimeSeccompProfileEnabled", Bool),
    opt("registerWithFQDN", Bool),
    opt("nodeIP", Fields(&[opt("validSubnets", TEXTS)])),
    opt("skipNodeRegistration", Bool),
    opt("disableManifestsDirectory", Bool),
];

const INSTALL: &[Field] = &[
    opt("disk", Text),
    opt(
        "diskSelector",
        Fields(&[
            opt("size", Text),
            opt("name", Text),
            opt("model", Text),
            opt("serial", Text),
            opt("modalias", Text),
            opt("uuid", Text),
            opt("wwid", Text),
            opt("type", OneOf(&["hdd", "ssd", "nvme", "sd"])),
            opt("busPath", Text),
        ]),
    ),
    opt("extraKernelArgs", TEXTS),
    opt("image", Text),
    opt("extensions", List(&Fields(&[opt("image", Text)]))),
    opt("bootloader", Bool),
    opt("wipe", Bool),
    opt("legacyBIOSSupport", Bool),
    opt("grubUseUKICmdline", Bool),
];

const DEVICE_SELECTOR: Shape = Fields(&[
    opt("busPath", Text),
    opt("hardwareAddr", Text),
    opt("permanentAddr", Text),
    opt("pciID", Text),
    opt("driver", Text),
    opt("physical", Bool),
]);

const ROUTES: Field = opt(
    "routes",
    List(&Fields(&[
        opt("network", Text),
        opt("gateway", Ip),
        opt("source", Ip),
        opt("metric", Int),
        opt("mtu", Int),
    ])),
);

const DHCP_OPTIONS: Field = opt(
    "dhcpOptions",
    Fields(&[
        opt("routeMetric", Int),
        opt("ipv4", Bool),
        opt("ipv6", Bool),
        opt("duidv6", Text),
    ]),
);

const NETWORK: &[Field] = &[
    opt("hostname", Text),
    opt(
        "interfaces",
        List(&Fields(&[
            opt("interface", Text),
            opt("deviceSelector", OneOrMore(&DEVICE_SELECTOR)),
            opt("addresses", TEXTS),
            opt("cidr", Text),
            ROUTES,
            opt("bond", Opaque),
            opt("bridge", Opaque),
            opt("bridgePort", Fields(&[opt("master", Text)])),
            opt(
                "vlans",
                List(&Fields(&[
                    opt("addresses", TEXTS),
                    opt("cidr", Text),
                    ROUTES,
                    opt("dhcp", Bool),
                    opt("vlanId", Int),
                    opt("mtu", Int),
                    opt("vip", Opaque),
                    DHCP_OPTIONS,
                ])),
            ),
            opt("mtu", Int),
            opt("dhcp", Bool),
            opt("ignore", Bool),
            opt("dummy", Bool),
            DHCP_OPTIONS,
            opt("wireguard", Opaque),
            opt("vip", Opaque),
        ])),
    ),
    opt("nameservers", List(&Ip)),
    opt("searchDomains", TEXTS),
    opt(
        "extraHostEntries",
        List(&Fields(&[req("ip", Ip), opt("aliases", TEXTS)])),
    ),
    opt("kubespan", Opaque),
    opt("disableSearchDomain", Bool),
];

const REGISTRIES: &[Field] = &[
    opt(
        "mirrors",
        MapOf(&Fields(&[
            opt("endpoints", List(&Url(&["http", "https"]))),
            opt("overridePath", Bool),
            opt("skipFallback", Bool),
        ])),
    ),
    opt(
        "config",
        MapOf(&Fields(&[
            opt(
                "tls",
                Fields(&[
                    opt("clientIdentity", CERTIFICATE_AND_KEY),
                    opt("ca", Text),
                    opt("insecureSkipVerify", Bool),
                ]),
            ),
            opt(
                "auth",
                Fields(&[
                    opt("username", Text),
                    opt("password", Text),
                    opt("auth", Text),
                    opt("identityToken", Text),
                ]),
            ),
        ])),
    ),
];

const FEATURES: &[Field] = &[
    opt("rbac", Bool),
    opt("stableHostname", Bool),
    opt(
        "kubernetesTalosAPIAccess",
        Fields(&[
            ENABLED,
            opt("allowedRoles", TEXTS),
            opt("allowedKubernetesNamespaces", TEXTS),
        ]),
    ),
    opt("apidCheckExtKeyUsage", Bool),
    opt("diskQuotaSupport", Bool),
    opt("kubePrism", Fields(&[ENABLED, opt("port", Int)])),
    opt(
        "hostDNS",
        Fields(&[
            ENABLED,
            opt("forwardKubeDNSToHost", Bool),
            opt("resolveMemberNames", Bool),
        ]),
    ),
    opt("imageCache", Fields(&[opt("localEnabled", Bool)])),
    opt("nodeAddressSortAlgorithm", Text),
];

const API_SERVER: &[Field] = &[
    IMAGE,
    EXTRA_ARGS,
    EXTRA_VOLUMES,
    ENV,
    opt("certSANs", TEXTS),
    opt("disablePodSecurityPolicy", Bool),
    opt(
        "admissionControl",
        List(&Fields(&[
            opt("name", Text),
            opt("configuration", OpaqueMap),
        ])),
    ),
    opt("auditPolicy", OpaqueMap),
    RESOURCES,
    opt("authorizationConfig", Opaque),
];

const CONTROLLER_MANAGER: &[Field] = &[IMAGE, EXTRA_ARGS, EXTRA_VOLUMES, ENV, RESOURCES];

const PROXY: &[Field] = &[opt("disabled", Bool), IMAGE, opt("mode", Text), EXTRA_ARGS];

const SCHEDULER: &[Field] = &[
    IMAGE,
    EXTRA_ARGS,
    EXTRA_VOLUMES,
    ENV,
    RESOURCES,
    opt("config", Opaque),
];

const CLUSTER: &[Field] = &[
    opt("id", Text),
    opt("secret", Text),
    opt(
        "controlPlane",
        Fields(&[opt("endpoint", Text), opt("localAPIServerPort", Int)]),
    ),
    opt("clusterName", Text),
    opt(
        "network",
        Fields(&[
            opt("cni", Opaque),
            opt("dnsDomain", Text),
            opt("podSubnets", TEXTS),
            opt("serviceSubnets", TEXTS),
        ]),
    ),
    opt("token", Text),
    opt("aescbcEncryptionSecret", Text),
    opt("secretboxEncryptionSecret", Text),
    opt("ca", CERTIFICATE_AND_KEY),
    opt("acceptedCAs", List(&Fields(&[opt("crt", Text)]))),
    opt("aggregatorCA", CERTIFICATE_AND_KEY),
    opt("serviceAccount", Fields(&[opt("key", Text)])),
    opt("apiServer", Fields(API_SERVER)),
    opt("controllerManager", Fields(CONTROLLER_MANAGER)),
    opt("proxy", Fields(PROXY)),
    opt("scheduler", Fields(SCHEDULER)),
    opt(
        "discovery",
        Fields(&[
            ENABLED,
            opt(
                "registries",
                Fields(&[
                    opt("kubernetes", Fields(&[opt("disabled", Bool)])),
                    opt(
                        "service",
                        Fields(&[opt("disabled", Bool), opt("endpoint", Text)]),
                    ),
                ]),
            ),
        ]),
    ),
    opt(
        "etcd",
        Fields(&[
            IMAGE,
            opt("ca", CERTIFICATE_AND_KEY),
            EXTRA_ARGS,
            opt("subnet", Text),
            opt("advertisedSubnets", TEXTS),
            opt("listenSubnets", TEXTS),
        ]),
    ),
    opt(
        "coreDNS",
        Fields(&[opt("disabled", Bool), opt("image", Text)]),
    ),
    opt(
        "externalCloudProvider",
        Fields(&[ENABLED, opt("manifests", TEXTS)]),
    ),
    opt("extraManifests", TEXTS),
    opt("extraManifestHeaders", TextMap),
    opt(
        "inlineManifests",
        List(&Fields(&[opt("name", Text), opt("contents", Text)])),
    ),
    opt("adminKubeconfig", Fields(&[opt("certLifetime", Duration)])),
    opt("allowSchedulingOnMasters", Bool),
    opt("allowSchedulingOnControlPlanes", Bool),
];
