//! The real network task against a real DHCP server, in network namespaces. Needs root, iproute2 and dnsmasq.
#![allow(clippy::unwrap_used, clippy::panic)]

mod namespace;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use machined::network::{
    CleanupPolicy, DhcpSpec, HostnameOrigin, Lease, LinkSpec, Network, NetworkSpec, NetworkStatus,
    Options,
};
use machined::values::{HostnamePolicy, RouteSpec};
use namespace::{block_on, isolated, run};
use rustix::process::{Pid, Signal, kill_process};

/// In namespaces of its own, the test leaves hostname and links of this machine as they are.
const NAMESPACES: &[&str] = &["--net", "--uts", "--mount"];

/// A process of a test, which is killed when this value is dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `eth0` here, and at its other end `srv0` in a namespace of its own with a DHCP server.
struct Lab {
    directory: tempfile::TempDir,
    namespace: Started,
    server: Option<Started>,
}

impl Lab {
    fn new() -> Self {
        let namespace = Started(
            Command::new("unshare")
                .args(["--net", "sleep", "600"])
                .spawn()
                .unwrap(),
        );
        let pid = namespace.0.id().to_string();
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while fs::read_link(format!("/proc/{pid}/ns/net")).unwrap() == own {
            assert!(
                Instant::now() < deadline,
                "unshare has not made a namespace"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        run(
            "ip",
            &[
                "link", "add", "eth0", "type", "veth", "peer", "name", "srv0", "netns", &pid,
            ],
        );
        let lab = Self {
            directory: tempfile::tempdir().unwrap(),
            namespace,
            server: None,
        };
        lab.there("ip", &["link", "set", "srv0", "up"]);
        lab
    }

    /// Runs a program in the server's namespace.
    fn there(&self, program: &str, arguments: &[&str]) -> String {
        let net = format!("--net=/proc/{}/ns/net", self.namespace.0.id());
        run("nsenter", &[&[net.as_str(), program], arguments].concat())
    }

    /// Starts dnsmasq for the network `10.77.N.0/24`.
    fn serve(&mut self, n: u8, more: &[&str]) {
        self.server = None;
        self.there("ip", &["address", "flush", "dev", "srv0"]);
        self.there(
            "ip",
            &["address", "add", &format!("10.77.{n}.1/24"), "dev", "srv0"],
        );
        let directory = self.directory.path().display();
        let log = fs::File::create(self.log()).unwrap();
        // Usually there is no such file.
        let _ = fs::remove_file(self.directory.path().join("leases"));
        let server = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.namespace.0.id()))
            .args([
                "dnsmasq",
                "--no-daemon",
                "--conf-file=/dev/null",
                "--port=0",
                "--user=root",
                "--dhcp-authoritative",
            ])
            .args([
                "--interface=srv0",
                "--bind-interfaces",
                "--log-dhcp",
                "--no-ping",
                "--log-facility=-",
            ])
            .arg(format!(
                "--dhcp-range=10.77.{n}.50,10.77.{n}.59,255.255.255.0,120"
            ))
            .arg(format!("--dhcp-leasefile={directory}/leases"))
            .arg(format!("--pid-file={directory}/pid"))
            .args(more)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("dnsmasq: apt-get install dnsmasq-base");
        self.server = Some(Started(server));
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.said("DHCP, IP range") {
            assert!(
                Instant::now() < deadline,
                "dnsmasq: {}",
                fs::read_to_string(self.log()).unwrap()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops dnsmasq without its end, or lets it go on: it then answers what was asked meanwhile.
    fn signal_server(&self, signal: Signal) {
        let server = self.server.as_ref().unwrap();
        kill_process(Pid::from_child(&server.0), signal).unwrap();
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("dnsmasq.log")
    }

    fn said(&self, what: &str) -> bool {
        fs::read_to_string(self.log())
            .unwrap_or_default()
            .contains(what)
    }

    fn options(&self, cleanup: CleanupPolicy) -> Options {
        Options {
            etc: self.etc(""),
            cleanup,
            ..Options::default()
        }
    }

    fn etc(&self, name: &str) -> PathBuf {
        self.directory.path().join("etc").join(name)
    }

    fn read_etc(&self, name: &str) -> String {
        fs::read_to_string(self.etc(name)).unwrap()
    }
}

fn dhcp_on_eth0() -> NetworkSpec {
    let mut eth0 = LinkSpec::new("eth0");
    eth0.dhcp = Some(DhcpSpec::default());
    NetworkSpec {
        links: vec![eth0],
        ..NetworkSpec::default()
    }
}

/// Waits until the status fulfils the condition. If it does not in time, the test fails and shows the status.
async fn wait_for(
    network: &Network,
    seconds: u64,
    wanted: impl Fn(&NetworkStatus) -> bool,
) -> NetworkStatus {
    let mut status = network.status();
    let found = tokio::time::timeout(
        Duration::from_secs(seconds),
        status.wait_for(|status| wanted(status)),
    )
    .await;
    match found {
        Ok(Ok(status)) => return status.clone(),
        Ok(Err(_)) => panic!("the network task has ended"),
        Err(_) => {}
    }
    let status = network.status().borrow().clone();
    panic!(
        "not within {seconds} s: {status:#?}\n{}",
        run("ip", &["address"])
    );
}

fn has_address(status: &NetworkStatus, prefix: &str) -> bool {
    status
        .addresses
        .iter()
        .any(|address| address.address.to_string().starts_with(prefix))
}

async fn leased(lab: &Lab) -> Vec<Lease> {
    let network = Network::start(
        lab.options(CleanupPolicy::Remove),
        Some(dhcp_on_eth0()),
        Vec::new(),
    )
    .unwrap();
    wait_for(&network, 20, |status| {
        status.ready && status.connectivity_ready
    })
    .await;
    network.leases()
}

#[test]
fn a_lease_is_taken_and_everything_follows_from_it() {
    isolated(
        "a_lease_is_taken_and_everything_follows_from_it",
        NAMESPACES,
        || {
            let mut lab = Lab::new();
            lab.serve(
                1,
                &[
                    "--dhcp-option=option:dns-server,10.77.1.3",
                    "--domain=lab.example",
                    "--dhcp-option=option:mtu,1400",
                    "--dhcp-option=option:ntp-server,10.77.1.4",
                    "--dhcp-host=*:*:*:*:*:*,node-7",
                ],
            );
            block_on(async {
                let network = Network::start(
                    lab.options(CleanupPolicy::Remove),
                    Some(dhcp_on_eth0()),
                    Vec::new(),
                )
                .unwrap();
                let status = wait_for(&network, 20, |status| {
                    status.ready && status.connectivity_ready
                })
                .await;
                assert!(has_address(&status, "10.77.1.5"), "{status:#?}");
                assert_eq!(status.problems, Vec::<String>::new());
                assert_eq!(
                    status.resolvers,
                    ["10.77.1.3".parse::<std::net::IpAddr>().unwrap()]
                );
                assert_eq!(
                    status.time_servers,
                    ["10.77.1.4".parse::<std::net::IpAddr>().unwrap()]
                );
                assert_eq!(
                    lab.read_etc("resolv.conf"),
                    "nameserver 10.77.1.3\nsearch lab.example\n"
                );
                assert_eq!(
                    rustix::system::uname().nodename().to_str().unwrap(),
                    status.hostname
                );
                assert_eq!(lab.read_etc("hostname").trim(), status.hostname);
                assert!(lab.read_etc("hosts").contains(&status.hostname));
                let route = run("ip", &["-4", "route", "show", "default"]);
                assert!(
                    route.contains("via 10.77.1.1 dev eth0 proto dhcp")
                        && route.contains("metric 1024"),
                    "{route}"
                );
                assert!(run("ip", &["link", "show", "eth0"]).contains("mtu 1400"));
                assert!(run("ip", &["link", "show", "lo"]).contains("LOOPBACK,UP"));
                let reserved =
                    fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap();
                assert_eq!(reserved.trim(), "50000");
                run("ping", &["-c", "1", "-W", "2", "10.77.1.1"]);
            });
        },
    );
}

#[test]
fn the_next_generation_keeps_the_address_and_cleans_up() {
    isolated(
        "the_next_generation_keeps_the_address_and_cleans_up",
        NAMESPACES,
        || {
            let mut lab = Lab::new();
            lab.serve(1, &[]);
            let json = block_on(async { serde_json::to_string(&leased(&lab).await).unwrap() });
            let before = run("ip", &["-4", "-o", "address", "show", "eth0"]);
            the_generation_before_leaves_things_behind();
            fs::write(lab.log(), "").unwrap();
            let events = lab.directory.path().join("events");
            let _monitor = changes_of_addresses(&events);
            block_on(async {
                let inherited: Vec<Lease> = serde_json::from_str(&json).unwrap();
                let spec = Some(dhcp_on_eth0());
                let options = lab.options(CleanupPolicy::Remove);
                lab.signal_server(Signal::STOP);
                let network = Network::start(options, spec, inherited).unwrap();
                an_inherited_lease_is_not_waited_for(&network).await;
                lab.signal_server(Signal::CONT);
                an_inherited_lease_is_confirmed_in_the_background(&lab).await;
            });
            assert_eq!(run("ip", &["-4", "-o", "address", "show", "eth0"]), before);
            let events = fs::read_to_string(&events).unwrap();
            assert!(
                !events.contains("10.77.1."),
                "the address was touched:\n{events}"
            );
        },
    );
}

fn the_generation_before_leaves_things_behind() {
    run("ip", &["address", "add", "192.0.2.9/32", "dev", "eth0"]);
    run(
        "ip",
        &["link", "add", "old0", "type", "veth", "peer", "old1"],
    );
    run(
        "ip",
        &[
            "route",
            "add",
            "198.51.100.0/24",
            "via",
            "10.77.1.9",
            "dev",
            "eth0",
        ],
    );
}

/// Starts a program that writes changes of addresses to the file from now on.
fn changes_of_addresses(events: &Path) -> Started {
    let mut monitor = Command::new("ip");
    monitor
        .args(["-4", "monitor", "address"])
        .stdout(fs::File::create(events).unwrap());
    let monitor = Started(monitor.spawn().unwrap());
    std::thread::sleep(Duration::from_millis(300));
    monitor
}

/// The server answers nothing meanwhile, and the lease's confirmation is given up after 10 s only. Checks also that addresses and routes of the
/// earlier generation are gone.
async fn an_inherited_lease_is_not_waited_for(network: &Network) {
    let status = wait_for(network, 8, |status| {
        status.ready && status.connectivity_ready
    })
    .await;
    assert!(
        status.links.iter().all(|link| link.name != "old0"),
        "{status:#?}"
    );
    assert!(!has_address(&status, "192.0.2.9"), "{status:#?}");
    assert!(!run("ip", &["route"]).contains("198.51.100"));
}

async fn an_inherited_lease_is_confirmed_in_the_background(lab: &Lab) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !lab.said("DHCPACK") {
        assert!(
            Instant::now() < deadline,
            "the lease is confirmed in the background"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(
        !lab.said("DHCPDISCOVER"),
        "{}",
        fs::read_to_string(lab.log()).unwrap()
    );
}

/// machined alone was killed while the DHCP server is down: the lease is good for a while yet.
#[test]
fn a_restart_with_its_leases_keeps_resolvers_and_hostname() {
    isolated(
        "a_restart_with_its_leases_keeps_resolvers_and_hostname",
        NAMESPACES,
        || {
            let mut lab = Lab::new();
            lab.serve(
                1,
                &[
                    "--dhcp-option=option:dns-server,10.77.1.3",
                    "--dhcp-host=*:*:*:*:*:*,node-7",
                ],
            );
            let leases = block_on(leased(&lab));
            lab.server = None;
            let resolv_conf = lab.read_etc("resolv.conf");
            let hostname = lab.read_etc("hostname");
            block_on(async {
                let options = lab.options(CleanupPolicy::Keep);
                let network = Network::start(options, Some(dhcp_on_eth0()), leases).unwrap();
                let mut status = network.status();
                status.changed().await.unwrap();
                let first = status.borrow().clone();
                assert!(first.ready && first.connectivity_ready, "{first:#?}");
                assert!(has_address(&first, "10.77.1."), "{first:#?}");
                assert_eq!(first.hostname_origin, Some(HostnameOrigin::Dhcp));
            });
            assert_eq!(resolv_conf, "nameserver 10.77.1.3\n");
            assert_eq!(lab.read_etc("resolv.conf"), resolv_conf);
            assert_eq!(lab.read_etc("hostname"), hostname);
        },
    );
}

#[test]
fn a_refused_lease_is_replaced() {
    isolated("a_refused_lease_is_replaced", NAMESPACES, || {
        let mut lab = Lab::new();
        lab.serve(1, &[]);
        let leases = block_on(leased(&lab));
        // The same cable leads to another network, where no server acknowledges the old address.
        lab.serve(2, &[]);
        block_on(async {
            let network = Network::start(
                lab.options(CleanupPolicy::Remove),
                Some(dhcp_on_eth0()),
                leases,
            )
            .unwrap();
            let status = wait_for(&network, 60, |status| has_address(status, "10.77.2.")).await;
            assert!(!has_address(&status, "10.77.1."), "{status:#?}");
            let routes = run("ip", &["-4", "route", "show", "default"]);
            assert!(
                routes.contains("via 10.77.2.1") && !routes.contains("10.77.1.1"),
                "{routes}"
            );
        });
    });
}

#[test]
fn a_lease_that_ends_takes_its_address_along() {
    isolated(
        "a_lease_that_ends_takes_its_address_along",
        NAMESPACES,
        || {
            let mut lab = Lab::new();
            lab.serve(1, &[]);
            let mut leases = block_on(leased(&lab));
            lab.server = None;
            block_on(async {
                leases[0].lifetime = 5;
                let network = Network::start(
                    lab.options(CleanupPolicy::Remove),
                    Some(dhcp_on_eth0()),
                    leases,
                )
                .unwrap();
                let status = wait_for(&network, 5, |status| has_address(status, "10.77.1.")).await;
                assert!(status.without_lease.is_empty(), "{status:#?}");
                let status =
                    wait_for(&network, 15, |status| !has_address(status, "10.77.1.")).await;
                assert!(!status.ready && !status.connectivity_ready, "{status:#?}");
                assert!(network.leases().is_empty());
                assert_eq!(status.without_lease, ["eth0"]);
            });
        },
    );
}

/// Without a carrier no client runs that could tell of the end.
#[test]
fn a_lease_ends_without_a_carrier() {
    isolated("a_lease_ends_without_a_carrier", NAMESPACES, || {
        let mut lab = Lab::new();
        lab.serve(1, &[]);
        let mut leases = block_on(leased(&lab));
        lab.there("ip", &["link", "set", "srv0", "down"]);
        block_on(async {
            leases[0].lifetime = 5;
            let options = lab.options(CleanupPolicy::Remove);
            let network = Network::start(options, Some(dhcp_on_eth0()), leases).unwrap();
            wait_for(&network, 5, |status| has_address(status, "10.77.1.")).await;
            let status = wait_for(&network, 15, |status| !has_address(status, "10.77.1.")).await;
            assert!(!status.connectivity_ready, "{status:#?}");
            assert!(network.leases().is_empty());
        });
    });
}

#[test]
fn a_lease_is_renewed() {
    isolated("a_lease_is_renewed", NAMESPACES, || {
        let mut lab = Lab::new();
        lab.serve(
            1,
            &[
                "--dhcp-option-force=option:T1,4",
                "--dhcp-option-force=option:T2,60",
            ],
        );
        block_on(async {
            let network = Network::start(
                lab.options(CleanupPolicy::Remove),
                Some(dhcp_on_eth0()),
                Vec::new(),
            )
            .unwrap();
            wait_for(&network, 20, |status| status.ready).await;
            let first = network.leases()[0].clone();
            assert_eq!((first.renew_after, first.lifetime), (4, 120), "{first:?}");
            tokio::time::sleep(Duration::from_secs(8)).await;
            let renewed = network.leases()[0].clone();
            assert!(
                renewed.obtained >= first.obtained + 4,
                "{first:?} {renewed:?}"
            );
            assert_eq!(renewed.address, first.address);
        });
    });
}

#[test]
fn a_cable_can_be_pulled_and_put_back() {
    isolated("a_cable_can_be_pulled_and_put_back", NAMESPACES, || {
        let mut lab = Lab::new();
        lab.serve(1, &[]);
        block_on(async {
            let network = Network::start(
                lab.options(CleanupPolicy::Remove),
                Some(dhcp_on_eth0()),
                Vec::new(),
            )
            .unwrap();
            wait_for(&network, 20, |status| status.connectivity_ready).await;
            let carrier = |status: &NetworkStatus| {
                status
                    .links
                    .iter()
                    .any(|link| link.name == "eth0" && link.carrier)
            };
            lab.there("ip", &["link", "set", "srv0", "down"]);
            let status = wait_for(&network, 5, |status| !carrier(status)).await;
            assert!(
                has_address(&status, "10.77.1."),
                "a loose contact costs no address"
            );
            fs::write(lab.log(), "").unwrap();
            lab.there("ip", &["link", "set", "srv0", "up"]);
            wait_for(&network, 5, |status| {
                carrier(status) && status.connectivity_ready
            })
            .await;
            let deadline = Instant::now() + Duration::from_secs(10);
            while !lab.said("DHCPACK") {
                assert!(Instant::now() < deadline, "the lease is asked for again");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    });
}

#[test]
fn static_config_is_applied_and_changed() {
    isolated("static_config_is_applied_and_changed", NAMESPACES, || {
        let lab = Lab::new();
        let mut spec = static_on_eth0();
        block_on(async {
            let options = lab.options(CleanupPolicy::Remove);
            let network = Network::start(options, Some(spec.clone()), Vec::new()).unwrap();
            static_addresses_have_a_name(&lab, &network).await;
            static_routes_have_their_metrics();
            what_others_remove_comes_back_and_what_they_add_stays(&network).await;
            a_default_route_of_others_is_noticed(&network).await;
            spec.links[0].addresses = vec!["192.0.2.8/24".parse().unwrap()];
            spec.links[0].routes = vec![default_route("192.0.2.1")];
            network.set_spec(spec.clone());
            another_static_config_takes_the_place_of_the_first(&network).await;
            network.set_spec(NetworkSpec::default());
            a_link_that_is_not_in_the_config_any_more_is_as_before(&network).await;
        });
    });
}

fn default_route(gateway: &str) -> RouteSpec {
    RouteSpec {
        destination: None,
        gateway: Some(gateway.parse().unwrap()),
        source: None,
        metric: None,
    }
}

fn static_on_eth0() -> NetworkSpec {
    let mut eth0 = LinkSpec::new("eth0");
    eth0.mtu = Some(1300);
    eth0.addresses = vec![
        "192.0.2.7/24".parse().unwrap(),
        "2001:db8::7/64".parse().unwrap(),
    ];
    eth0.routes = vec![
        default_route("192.0.2.1"),
        default_route("2001:db8::1"),
        RouteSpec {
            metric: Some(5),
            ..default_route("10.0.0.1")
        },
    ];
    NetworkSpec {
        links: vec![eth0],
        nameservers: vec!["192.0.2.53".parse().unwrap()],
        hostname: HostnamePolicy::Fixed("node-1.example.org".parse().unwrap()),
        ..NetworkSpec::default()
    }
}

/// The kernel refuses a gateway that is on no network of the link. A metric of 0 is none to it, where the route is one of IPv6.
#[test]
fn a_refused_route_is_told_until_it_is_gone() {
    isolated(
        "a_refused_route_is_told_until_it_is_gone",
        NAMESPACES,
        || {
            let lab = Lab::new();
            let mut spec = static_on_eth0();
            spec.links[0].routes = vec![
                RouteSpec {
                    metric: Some(0),
                    ..default_route("2001:db8::1")
                },
                RouteSpec {
                    metric: Some(7),
                    ..default_route("2001:db8:ffff::1")
                },
            ];
            block_on(async {
                let options = lab.options(CleanupPolicy::Remove);
                let network = Network::start(options, Some(spec.clone()), Vec::new()).unwrap();
                let status = wait_for(&network, 10, |status| {
                    status.connectivity_ready && status.problems.len() == 1
                })
                .await;
                let problem = &status.problems[0];
                let refused = "cannot add route ::/0 over eth0 via 2001:db8:ffff::1 metric 7";
                assert!(problem.contains(refused), "{problem}");
                spec.links[0].routes.pop();
                network.set_spec(spec);
                wait_for(&network, 5, |status| status.problems.is_empty()).await;
            });
            assert!(
                run("ip", &["-6", "route"])
                    .contains("default via 2001:db8::1 dev eth0 proto static metric 1024")
            );
        },
    );
}

async fn static_addresses_have_a_name(lab: &Lab, network: &Network) {
    let status = wait_for(network, 5, |status| {
        status.ready && status.routes.len() >= 4
    })
    .await;
    assert_eq!(status.problems, Vec::<String>::new());
    assert_eq!(status.hostname_origin, Some(HostnameOrigin::Config));
    assert!(
        lab.read_etc("hosts")
            .contains("192.0.2.7 node-1.example.org node-1\n")
    );
}

fn static_routes_have_their_metrics() {
    let routes = run("ip", &["route"]);
    assert!(
        routes.contains("default via 192.0.2.1 dev eth0 proto static metric 1024"),
        "{routes}"
    );
    assert!(
        routes.contains("default via 10.0.0.1 dev eth0 proto static metric 5 onlink"),
        "{routes}"
    );
    assert!(
        run("ip", &["-6", "route"])
            .contains("default via 2001:db8::1 dev eth0 proto static metric 1024")
    );
}

async fn what_others_remove_comes_back_and_what_they_add_stays(network: &Network) {
    run("ip", &["address", "del", "2001:db8::7/64", "dev", "eth0"]);
    run("ip", &["address", "add", "192.0.2.200/32", "dev", "eth0"]);
    wait_for(network, 5, |status| {
        has_address(status, "192.0.2.200") && has_address(status, "2001:db8::7")
    })
    .await;
}

/// Nothing but the route changes, as with one from a router's advertisement.
async fn a_default_route_of_others_is_noticed(network: &Network) {
    let route = ["route", "add", "default", "via", "fe80::1", "dev", "eth0"];
    run("ip", &[&["-6"], &route[..], &["metric", "99"]].concat());
    wait_for(network, 5, |status| {
        status.routes.iter().any(|route| route.metric == 99)
    })
    .await;
}

/// Addresses and routes that other programs have added stay.
async fn another_static_config_takes_the_place_of_the_first(network: &Network) {
    let status = wait_for(network, 5, |status| {
        has_address(status, "192.0.2.8") && !has_address(status, "192.0.2.7")
    })
    .await;
    assert!(
        has_address(&status, "192.0.2.200") && !has_address(&status, "2001:db8::7"),
        "{status:#?}"
    );
    assert_eq!(status.problems, Vec::<String>::new());
    assert!(
        run("ip", &["route"]).contains("default via 192.0.2.1 dev eth0"),
        "the new address has a route"
    );
}

/// `eth0` is made by software here: without an entry in the config it is no link of ours.
async fn a_link_that_is_not_in_the_config_any_more_is_as_before(network: &Network) {
    let mtu = |status: &NetworkStatus| {
        let eth0 = status.links.iter().find(|link| link.name == "eth0");
        eth0.map(|link| link.mtu)
    };
    let status = wait_for(network, 5, |status| {
        mtu(status) == Some(1500) && !has_address(status, "192.0.2.8")
    })
    .await;
    assert!(has_address(&status, "192.0.2.200"), "{status:#?}");
    assert!(!run("ip", &["route"]).contains("default"), "{status:#?}");
}
