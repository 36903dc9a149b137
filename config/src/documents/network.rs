//! The network above the links: addresses from DHCP, names, rules, probes.

use super::super::shape::{Kind, Shape, Shape::*, TEXTS, kind, opt, req};

const WEB: Shape = Url(&["http", "https"]);
const DUID: Shape = OneOf(&["none", "mac", "duid"]);
const BFD: Shape = Fields(&[
    opt("transmitInterval", Duration),
    opt("receiveInterval", Duration),
    opt("detectMultiplier", Int),
]);

pub(super) const KINDS: &[Kind] = &[
    kind(
        "BGPInstanceConfig",
        &[
            req("name", Text),
            opt("vrf", Text),
            req("localASN", Int),
            opt("routerID", Text),
            opt("routeSource", Text),
            opt("advertise", TEXTS),
            opt("multipath", Bool),
            opt("maxPaths", Int),
            opt("installRoutes", Bool),
            opt(
                "importRoutes",
                List(&Fields(&[
                    req("bgpInstance", Text),
                    req("prefixes", List(&Cidr)),
                ])),
            ),
            opt(
                "neighbors",
                List(&Fields(&[
                    opt("address", Text),
                    opt("link", Text),
                    opt("peerASN", Int),
                    opt("localASN", Int),
                    opt("passive", Bool),
                    opt("holdTime", Duration),
                    opt("bfd", BFD),
                ])),
            ),
        ],
    ),
    kind(
        "BlackholeRouteConfig",
        &[req("name", Text), opt("metric", Int)],
    ),
    kind(
        "DHCPv4Config",
        &[
            req("name", Text),
            opt("routeMetric", Int),
            opt("ignoreHostname", Bool),
            opt("ignoreRoutes", Bool),
            opt("clientIdentifier", DUID),
            opt("duidRaw", Text),
        ],
    ),
    kind(
        "DHCPv6Config",
        &[
            req("name", Text),
            opt("routeMetric", Int),
            opt("ignoreHostname", Bool),
            opt("clientIdentifier", DUID),
            opt("duidRaw", Text),
        ],
    ),
    kind(
        "HCloudVIPConfig",
        &[req("name", Text), opt("link", Text), opt("apiToken", Text)],
    ),
    kind(
        "HostnameConfig",
        &[
            opt("auto", OneOf(&["stable", "off"])),
            opt("hostname", Text),
        ],
    ),
    kind(
        "HTTPProbeConfig",
        &[
            req("name", Text),
            opt("interval", Duration),
            opt("failureThreshold", Int),
            req("url", WEB),
            opt("timeout", Duration),
        ],
    ),
    kind(
        "KubeSpanConfig",
        &[
            opt("enabled", Bool),
            opt("advertiseKubernetesNetworks", Bool),
            opt("allowDownPeerBypass", Bool),
            opt("harvestExtraEndpoints", Bool),
            opt("mtu", Int),
            opt(
                "filters",
                Fields(&[
                    opt("endpoints", TEXTS),
                    opt("excludeAdvertisedNetworks", List(&Cidr)),
                ]),
            ),
        ],
    ),
    kind(
        "KubeSpanEndpointsConfig",
        &[opt("extraAnnouncedEndpoints", TEXTS)],
    ),
    kind("Layer2VIPConfig", &[req("name", Text), opt("link", Text)]),
    kind(
        "NetworkDefaultActionConfig",
        &[opt("ingress", OneOf(&["accept", "block"]))],
    ),
    kind(
        "NetworkRuleConfig",
        &[
            req("name", Text),
            opt(
                "portSelector",
                Fields(&[
                    opt("ports", TEXTS),
                    opt("protocol", OneOf(&["tcp", "udp", "icmp", "icmpv6"])),
                ]),
            ),
            opt(
                "ingress",
                List(&Fields(&[opt("subnet", Cidr), opt("except", Cidr)])),
            ),
        ],
    ),
    kind(
        "ResolverConfig",
        &[
            opt(
                "nameservers",
                List(&Fields(&[
                    opt("address", Ip),
                    opt("protocol", OneOf(&["Do53", "DoT", "DoH"])),
                    opt("tlsServerName", Text),
                ])),
            ),
            opt(
                "searchDomains",
                Fields(&[opt("domains", TEXTS), opt("disableDefault", Bool)]),
            ),
            opt(
                "hostDNS",
                Fields(&[
                    opt("enabled", Bool),
                    opt("forwardKubeDNSToHost", Bool),
                    opt("resolveMemberNames", Bool),
                ]),
            ),
        ],
    ),
    kind(
        "RoutingRuleConfig",
        &[
            req("name", Text),
            opt("src", Text),
            opt("dst", Text),
            req("table", Text),
            opt("action", Int),
            opt("iifName", Text),
            opt("oifName", Text),
            opt("fwMark", Int),
            opt("fwMask", Int),
        ],
    ),
    kind(
        "StaticHostConfig",
        &[req("name", Text), opt("hostnames", TEXTS)],
    ),
    kind(
        "TCPProbeConfig",
        &[
            req("name", Text),
            opt("interval", Duration),
            opt("failureThreshold", Int),
            req("endpoint", Text),
            opt("timeout", Duration),
        ],
    ),
];
