//! Links: physical ones, and links that are made of others.

use super::super::shape::{Field, Kind, Shape, Shape::*, TEXTS, kind, opt, req};

const NAME: Field = req("name", Text);
const HARDWARE: Field = opt("hardwareAddr", Mac);

// The fields of every link. Written out one by one: a const cannot join slices.
const UP: Field = opt("up", Bool);
const MTU: Field = opt("mtu", Int);
const ADDRESSES: Field = opt(
    "addresses",
    List(&Fields(&[req("address", Cidr), opt("routePriority", Int)])),
);
const ROUTES: Field = opt(
    "routes",
    List(&Fields(&[
        opt("destination", Cidr),
        opt("gateway", Ip),
        opt("source", Ip),
        opt("metric", Int),
        opt("mtu", Int),
        opt("table", Text),
    ])),
);
const MULTICAST: Field = opt("multicast", Bool);

const RINGS: Shape = Fields(&[
    opt("rx", Int),
    opt("tx", Int),
    opt("rx-mini", Int),
    opt("rx-jumbo", Int),
    opt("rx-buf-len", Int),
    opt("cqe-size", Int),
    opt("tx-push", Bool),
    opt("rx-push", Bool),
    opt("tx-push-buf-len", Int),
    opt("tcp-data-split", Bool),
]);

pub(super) const KINDS: &[Kind] = &[
    kind(
        "BondConfig",
        &[
            NAME,
            HARDWARE,
            req("links", TEXTS),
            req(
                "bondMode",
                OneOf(&[
                    "balance-rr",
                    "active-backup",
                    "balance-xor",
                    "broadcast",
                    "802.3ad",
                    "balance-tlb",
                    "balance-alb",
                ]),
            ),
            opt("miimon", Int),
            opt("updelay", Int),
            opt("downdelay", Int),
            opt("useCarrier", Bool),
            opt(
                "xmitHashPolicy",
                OneOf(&["layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4"]),
            ),
            opt("arpInterval", Int),
            opt("arpIpTargets", List(&Ip)),
            opt("nsIp6Targets", List(&Ip)),
            opt(
                "arpValidate",
                OneOf(&[
                    "none",
                    "active",
                    "backup",
                    "all",
                    "filter",
                    "filter-active",
                    "filter-backup",
                ]),
            ),
            opt("arpAllTargets", OneOf(&["any", "all"])),
            opt("lacpRate", OneOf(&["slow", "fast"])),
            opt("failOverMac", OneOf(&["none", "active", "follow"])),
            opt("adSelect", OneOf(&["stable", "bandwidth", "count"])),
            opt("adActorSysPrio", Int),
            opt("adUserPortKey", Int),
            opt("adLACPActive", OneOf(&["on", "off"])),
            opt("primary", Text),
            opt("primaryReselect", OneOf(&["always", "better", "failure"])),
            opt("resendIGMP", Int),
            opt("minLinks", Int),
            opt("lpInterval", Int),
            opt("packetsPerSlave", Int),
            opt("numPeerNotif", Int),
            opt("tlbLogicalLb", Int),
            opt("allSlavesActive", Int),
            opt("peerNotifDelay", Int),
            opt("missedMax", Int),
            UP,
            MTU,
            ADDRESSES,
            ROUTES,
            MULTICAST,
        ],
    ),
    kind(
        "BridgeConfig",
        &[
            NAME,
            HARDWARE,
            req("links", TEXTS),
            opt("stp", Fields(&[opt("enabled", Bool)])),
            opt("vlan", Fields(&[opt("filtering", Bool)])),
            UP,
            MTU,
            ADDRESSES,
            ROUTES,
            MULTICAST,
        ],
    ),
    kind(
        "DummyLinkConfig",
        &[NAME, HARDWARE, UP, MTU, ADDRESSES, ROUTES, MULTICAST],
    ),
    kind(
        "EthernetConfig",
        &[
            NAME,
            opt("features", MapOf(&Bool)),
            opt("rings", RINGS),
            opt(
                "channels",
                Fields(&[
                    opt("rx", Int),
                    opt("tx", Int),
                    opt("other", Int),
                    opt("combined", Int),
                ]),
            ),
            opt("wakeOnLan", TEXTS),
        ],
    ),
    kind("LinkConfig", &[NAME, UP, MTU, ADDRESSES, ROUTES, MULTICAST]),
    kind(
        "LinkAliasConfig",
        &[NAME, opt("selector", Fields(&[opt("match", Text)]))],
    ),
    kind(
        "VethConfig",
        &[
            NAME,
            req(
                "peer",
                Fields(&[NAME, UP, MTU, ADDRESSES, ROUTES, MULTICAST]),
            ),
            UP,
            MTU,
            ADDRESSES,
            ROUTES,
            MULTICAST,
        ],
    ),
    kind(
        "VLANConfig",
        &[
            NAME,
            req("vlanID", Int),
            opt("vlanMode", OneOf(&["802.1q", "802.1ad"])),
            req("parent", Text),
            UP,
            MTU,
            ADDRESSES,
            ROUTES,
            MULTICAST,
        ],
    ),
    kind(
        "VRFConfig",
        &[
            NAME,
            HARDWARE,
            req("links", TEXTS),
            req("table", Text),
            UP,
            MTU,
            ADDRESSES,
            ROUTES,
            MULTICAST,
        ],
    ),
    kind(
        "WireguardConfig",
        &[
            NAME,
            req("privateKey", Text),
            opt("listenPort", Int),
            opt("firewallMark", Int),
            opt(
                "peers",
                List(&Fields(&[
                    req("publicKey", Text),
                    opt("presharedKey", Text),
                    opt("endpoint", Text),
                    opt("persistentKeepaliveInterval", Duration),
                    opt("allowedIPs", List(&Cidr)),
                ])),
            ),
            UP,
            MTU,
            ADDRESSES,
            ROUTES,
            MULTICAST,
        ],
    ),
];
