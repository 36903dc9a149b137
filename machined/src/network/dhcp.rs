//! Keeps one link's DHCPv4 lease.
//!
//! mozim speaks the protocol; this is the policy around it:
//!
//! ```text
//!            known lease                     ACK
//!   start ───────────────► confirming ──────────────► bound ◄─────────┐
//!     │                        │ no ACK in 10 s         │ T1          │ ACK
//!     │ no lease               ▼                        ▼             │
//!     └──────────────────► discovering ◄──────────── renewing ────────┤
//!                              │  ▲      no ACK in 30 s │ 10 s        │
//!                              │  └─────────────────── rebinding ─────┘
//!                        OFFER ▼  │ no ACK in 5 s
//!                          requesting ──── ACK ──► bound
//! ```
//!
//! mozim drops a NAK without reporting it, so a NAK looks like silence here, and both have the same consequence: discover anew,
//! and **keep the address meanwhile**, until the lease expires or there is another one. A server that still knows us
//! offers the same address again, and then no connection notices.
//!
//! Before it discovers, mozim waits up to 200 ms, at random, so that machines that start together do not ask together (RFC 2131, section 4.4.1). No
//! setting shortens that: a machine has its address 100 ms later on average.
//!
//! Renewing asks the server by unicast, over a socket that only receives packets to our address. Some servers acknowledge
//! by broadcast all the same, against RFC 2131, section 4.1 (QEMU's user network does). So rebinding, which receives
//! broadcasts too, follows within seconds instead of at the server's T2, also while a lease is confirmed.

use std::time::Duration;

use mozim::{DhcpError, DhcpV4Client, DhcpV4Config, DhcpV4Lease, DhcpV4State};
use tokio::{sync::mpsc, time::Instant};
use tracing::{debug, info, warn};

use super::Lease;

/// Timeout for confirming an inherited lease. After it we discover as well.
const CONFIRM: Duration = Duration::from_secs(10);
/// Timeout for renewing a lease.
const RENEW: Duration = Duration::from_secs(30);
/// Timeout for renewing by unicast, in seconds. After it all servers are asked by broadcast.
const RENEW_BY_UNICAST: u32 = 10;
/// Timeout for the acknowledgement of an offer that we accepted. Without one the offer was not meant for us.
const REQUEST: Duration = Duration::from_secs(5);
/// Pause after an error of the socket, for example on a link that is just going away.
const AFTER_ERROR: Duration = Duration::from_secs(2);

/// The link to get a lease for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) mac: Vec<u8>,
    pub(super) mac_text: String,
}

/// Keeps a lease until the future is dropped; reports each one, new or renewed, to `leases`. It does not tell that a lease is over: a lease
/// says so itself.
pub(super) async fn keep_lease(
    port: Port,
    known: Option<Lease>,
    hostname: String,
    leases: mpsc::Sender<Lease>,
) {
    // Fails only for a link without an Ethernet address, which a retry would not change.
    let mut client = match client_for(&port, &hostname).await {
        Ok(client) => client,
        Err(error) => return warn!(link = port.name, %error, "cannot run DHCP on this link"),
    };
    let mut keeper = Keeper {
        port,
        held: None,
        leases,
    };
    keeper.resume(&mut client, known);
    keeper.run(client).await;
}

async fn client_for(port: &Port, hostname: &str) -> Result<DhcpV4Client, DhcpError> {
    let mut config = DhcpV4Config::new(&port.name);
    config.set_iface_index(port.index);
    config.set_iface_mac_raw(&port.mac)?;
    config.use_mac_as_client_id();
    if !hostname.is_empty() {
        config.set_host_name(hostname);
    }
    DhcpV4Client::init(config, None).await
}

struct Keeper {
    port: Port,
    held: Option<Lease>,
    leases: mpsc::Sender<Lease>,
}

impl Keeper {
    fn resume(&mut self, client: &mut DhcpV4Client, known: Option<Lease>) {
        let now = boot_seconds();
        let Some(lease) =
            known.filter(|lease| lease.mac == self.port.mac_text && !lease.is_over(now))
        else {
            return;
        };
        match client.done(lease.to_be_confirmed(now)) {
            Ok(()) => self.held = Some(lease),
            Err(error) => {
                warn!(link = self.port.name, %error, "cannot use the known lease, asking for a new one")
            }
        }
    }

    async fn run(mut self, mut client: DhcpV4Client) {
        let mut patience = self.held.as_ref().map(|_| Instant::now() + CONFIRM);
        loop {
            let expiry = self
                .held
                .as_ref()
                .and_then(|lease| lease.remaining(boot_seconds()));
            tokio::select! {
                state = client.run() => match state {
                    Ok(DhcpV4State::Done(reply)) => {
                        patience = None;
                        let taken = self.take(&reply).await;
                        if !taken || !rebind_early(&mut client, *reply) {
                            client.clean_up();
                            tokio::time::sleep(AFTER_ERROR).await;
                        }
                    }
                    Ok(state) => {
                        debug!(link = self.port.name, %state, "DHCP");
                        patience = match state {
                            DhcpV4State::Selecting => Some(Instant::now() + REQUEST),
                            DhcpV4State::Renewing | DhcpV4State::Rebinding => patience.or(Some(Instant::now() + RENEW)),
                            _ => None,
                        };
                    }
                    Err(error) => {
                        debug!(link = self.port.name, %error, "DHCP has to start again");
                        client.clean_up();
                        patience = None;
                        tokio::time::sleep(AFTER_ERROR).await;
                    }
                },
                () = sleep_until(patience) => {
                    info!(link = self.port.name, "the DHCP server does not acknowledge, discovering again");
                    client.clean_up();
                    patience = None;
                }
                () = sleep_for(expiry) => {
                    self.held = None;
                    client.clean_up();
                    patience = None;
                }
                () = self.leases.closed() => return,
            }
        }
    }

    /// Takes over a reply as the new lease. Returns false if it is no valid lease.
    async fn take(&mut self, reply: &DhcpV4Lease) -> bool {
        match Lease::from_reply(&self.port.name, &self.port.mac_text, reply, boot_seconds()) {
            Ok(lease) => {
                info!(link = self.port.name, address = %lease.address, seconds = lease.lifetime, "DHCP lease");
                self.held = Some(lease.clone());
                // An error means that no task takes the leases: the network is being taken down.
                let _ = self.leases.send(lease).await;
                true
            }
            Err(error) => {
                warn!(link = self.port.name, %error, "ignoring a DHCP lease");
                false
            }
        }
    }
}

/// Moves the broadcast renewal (T2) to soon after T1. Returns false if mozim refuses the lease with these times.
fn rebind_early(client: &mut DhcpV4Client, mut lease: DhcpV4Lease) -> bool {
    let early = lease.t1_sec.saturating_add(RENEW_BY_UNICAST);
    lease.t2_sec = lease.t2_sec.min(early);
    client.done(lease).is_ok()
}

/// Sleeps until this time; for ever without one.
pub(super) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Sleeps for this time; for ever without one.
pub(super) async fn sleep_for(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

/// Returns the seconds since the kernel started, suspended time included.
pub(super) fn boot_seconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0)
}
