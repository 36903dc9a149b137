//! Rollouts over a fleet.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use instar_rollout::{Hours, Percent, Rate, Seconds};

const ROLL_EXAMPLES: &str = "\
Examples:
  instarctl fleet roll --image registry.example/installer:v0.2.0 --fleet fleet.yaml --canary 1 --at-once 2 --roll-back
  instarctl -e 10.0.0.1 fleet roll --image registry.example/installer:v0.2.0 --members --share 25 --window \"02:00-05:00\"";

/// Rollouts over many nodes, without a server.
#[derive(Debug, Subcommand)]
pub(crate) enum Fleet {
    /// Show what a rollout would do, with a reason for each node; nothing changes
    Plan(FleetRoll),
    /// Upgrade all nodes in waves, or go on where a rollout was interrupted
    ///
    /// The nodes are those of --fleet or --members, else those of -n, else those behind the endpoints. The state of the rollout is written before each
    /// step, so the command may be killed at any moment: the same command goes on where it was.
    #[command(after_help = ROLL_EXAMPLES)]
    Roll(FleetRoll),
    /// Change the machine configs of all nodes in waves, or go on where that was interrupted
    ///
    /// Each node tries its new config first: it goes back by itself unless it is ready with it, over a new connection, and is then told to
    /// keep it. What only a boot applies takes a reboot, after which the node has to be ready in time. The policies are those of `roll`, and
    /// `status`, `pause`, `rollback` and the others are for this rollout too.
    Apply(FleetApply),
    /// Show how far the rollout is, and what is wrong with its nodes
    ///
    /// The rollout is shown as it is in its folder. Each node is asked for its conditions, for 3 s at most; `get conditions` has their messages.
    Status(FleetState),
    /// Collect the diagnostics of all nodes, or of a pool, in one file: as `support` does for one
    ///
    /// There are no secrets in it, but for an administrator the URL of the machine config: use a certificate with the role os:reader.
    ///
    /// Nodes that are away, and parts that cannot be read, are named on standard error and in the file, which is written in any case.
    Support(FleetSupport),
    /// Sign the certificates of nodes that have no authority's key and no control plane to ask
    ///
    /// Each node shows a request for its own key and names. It is signed on this computer and given back; the node refuses a certificate that
    /// is for another machine or by another authority. A node that clients cannot verify yet has to be named by the fingerprint on its console
    /// (--cert-fingerprint), one without a machine config also with --insecure. A node that is away keeps no other one from its certificate.
    /// With --members, nodes that get theirs from their control plane are left to it.
    Sign(FleetSign),
    /// Replace the authority of all nodes by a new one, or go on where that was interrupted
    ///
    /// First all nodes accept the new authority, then this client configuration gets a certificate of it, then the nodes get theirs, and then
    /// the old authority is dropped. At each moment the client configuration reaches every node that is up. A node that is away is waited for.
    /// Each node is called at its own address: with --members at the one that the cluster has for it.
    Rotate(FleetRotate),
    /// Show the rollout as a page for a browser, which can steer it too; runs until it is ended
    ///
    /// The address that is printed ends in a key: whoever has it may pause, approve, abort and roll back. With --followers the page also
    /// shows nodes that follow a channel by themselves, as they go.
    Serve {
        /// Show the nodes that follow a channel, too: those of --fleet or --members, or else of --nodes
        #[arg(long)]
        followers: bool,
        #[command(flatten)]
        nodes: FleetNodes,
        /// Address to listen on
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8095")]
        listen: SocketAddr,
        #[command(flatten)]
        state: FleetState,
    },
    /// Let no other node begin; nodes that are under way come to their end
    Pause {
        /// Why, for others to read
        #[arg(long, default_value = "by hand")]
        reason: String,
        #[command(flatten)]
        state: FleetState,
    },
    /// Go on after a pause, or after the rollout has stopped by itself
    ///
    /// Drives the rollout to its end, unless another command does.
    Resume(FleetState),
    /// Have nodes that failed try again, and go on
    ///
    /// Drives the rollout to its end, unless another command does.
    Retry(FleetState),
    /// End the rollout; nodes keep the version that they run
    Abort(FleetState),
    /// Have all nodes that run the new version go back to the one before
    ///
    /// Drives the rollout to its end, unless another command does.
    Rollback {
        /// Why, for others to read
        #[arg(long, default_value = "by hand")]
        reason: String,
        #[command(flatten)]
        state: FleetState,
    },
    /// Approve the next wave
    Approve(FleetState),
    /// Leave a node alone, whatever the rollout does
    Hold {
        /// The node's name in the rollout
        node: String,
        /// Why, for others to read
        #[arg(long, default_value = "by hand")]
        reason: String,
        #[command(flatten)]
        state: FleetState,
    },
    /// Take a hold back
    Release {
        /// The node's name in the rollout
        node: String,
        #[command(flatten)]
        state: FleetState,
    },
}

/// The nodes of a fleet, unless -n or the endpoints name them.
#[derive(Args, Debug)]
pub(crate) struct FleetNodes {
    /// File with the nodes and policies of the fleet
    #[arg(long, value_name = "FILE", conflicts_with = "members")]
    pub(crate) fleet: Option<PathBuf>,
    /// The nodes that the node at the endpoint lists as members of its Kubernetes cluster, as `get members` shows them
    #[arg(long)]
    pub(crate) members: bool,
}

/// Arguments of `fleet support`.
#[derive(Args, Debug)]
pub(crate) struct FleetSupport {
    #[command(flatten)]
    pub(crate) nodes: FleetNodes,
    /// Take only the nodes of this pool
    #[arg(long)]
    pub(crate) pool: Option<String>,
    /// Output file (tar.gz)
    #[arg(
        short = 'O',
        long,
        alias = "output-file",
        value_name = "FILE",
        default_value = "support.tar.gz"
    )]
    pub(crate) file: PathBuf,
    /// Replace an existing file
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// Arguments of `fleet sign`.
#[derive(Args, Debug)]
pub(crate) struct FleetSign {
    /// File with the authority and its key: secrets of `gen secrets`, a machine config that has them, or PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) authority: PathBuf,
    /// How long the certificates are valid (12h, 90d)
    #[arg(long, value_name = "TIME", default_value = "365d")]
    pub(crate) valid_for: Seconds,
    /// Further name or address for the certificate, which the node's config brings; only for a node without a config
    #[arg(long, value_name = "NAME", conflicts_with_all = ["fleet", "members"])]
    pub(crate) name: Vec<String>,
    /// Send this machine config to the node after the certificate
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fleet", "members"])]
    pub(crate) apply: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) nodes: FleetNodes,
}

/// Arguments of `fleet rotate`.
#[derive(Args, Debug)]
pub(crate) struct FleetRotate {
    #[command(flatten)]
    pub(crate) nodes: FleetNodes,
    /// File with the new authority and its key, as for `fleet sign` [default: a new one is made]
    #[arg(long, value_name = "FILE")]
    pub(crate) authority: Option<PathBuf>,
    /// File of `gen secrets` that gets the new authority in place of the old one at the end
    #[arg(long, value_name = "FILE")]
    pub(crate) secrets: Option<PathBuf>,
    /// How long the certificates of nodes without the authority's key are valid (12h, 90d)
    #[arg(long, value_name = "TIME", default_value = "365d")]
    pub(crate) valid_for: Seconds,
    /// Do not wait for this node: it keeps the old authority; may be given several times
    #[arg(long, value_name = "NODE")]
    pub(crate) leave: Vec<String>,
    /// Show the next steps, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// How long to wait for nodes that are away, while there is nothing else to do
    #[arg(long, value_name = "TIME", default_value = "30m")]
    pub(crate) patience: Seconds,
    #[command(flatten)]
    pub(crate) state: FleetState,
}

/// Where the state of the rollout is kept.
#[derive(Args, Debug)]
pub(crate) struct FleetState {
    /// Folder with the state of the rollout [default: `fleet` beside the client configuration]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

/// Arguments of `fleet plan` and `fleet roll`.
#[derive(Args, Debug)]
pub(crate) struct FleetRoll {
    /// Installer image
    #[arg(short, long, value_name = "REFERENCE")]
    pub(crate) image: String,
    #[command(flatten)]
    pub(crate) over: FleetOver,
}

/// The nodes that a rollout is over, how carefully it goes, and where its state is kept.
#[derive(Args, Debug)]
pub(crate) struct FleetOver {
    #[command(flatten)]
    pub(crate) nodes: FleetNodes,
    /// Append each round of the rollout to this file, as a line of JSON: what was seen, and what was decided
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) limits: FleetLimits,
    #[command(flatten)]
    pub(crate) state: FleetState,
}

/// Arguments of `fleet apply`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("change").required(true))]
pub(crate) struct FleetApply {
    /// Patch for the config of each node: a piece of config, a JSON patch, or @FILE; may be given several times
    #[arg(short = 'p', long = "patch", value_name = "PATCH", group = "change")]
    pub(crate) patches: Vec<String>,
    /// Folder with a whole config for each node, NAME.yaml
    #[arg(long, value_name = "DIR", group = "change")]
    pub(crate) configs: Option<PathBuf>,
    /// Show what each node would do, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Refuse a change that takes a reboot
    #[arg(long)]
    pub(crate) no_reboot: bool,
    /// Time after which a node that is not told to keep its new config goes back by itself (90s, 5m)
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = trial_time)]
    pub(crate) try_for: Seconds,
    /// How long a node has to be ready with its new config before it is told to keep it
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(crate) steady: Seconds,
    #[command(flatten)]
    pub(crate) over: FleetOver,
}

/// Limits on a rollout. Policies of the fleet's file hold too: the smallest number counts.
#[derive(Args, Debug)]
pub(crate) struct FleetLimits {
    /// Number of nodes that may be out of service at once [default: 1, unless --share or a policy of the file says otherwise]
    #[arg(long, value_name = "COUNT")]
    pub(crate) at_once: Option<NonZeroU32>,
    /// The same as a share of all nodes, in percent
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) share: Option<Percent>,
    /// Number of nodes that go first; the others begin when all of them have proved themselves
    #[arg(long, value_name = "COUNT")]
    pub(crate) canary: Option<NonZeroU32>,
    /// How long the canaries must have run the version before the others begin (90s, 30m, 1h, 2d)
    #[arg(long, value_name = "TIME", default_value = "0s", requires = "canary")]
    pub(crate) soak: Seconds,
    /// Number of nodes that may begin in a time, such as 2/1h
    #[arg(long, value_name = "COUNT/TIME", value_parser = rate)]
    pub(crate) rate: Option<Rate>,
    /// Begin only in these hours, such as "02:00-05:00 Europe/Berlin" or "Sat,Sun 02:00-05:00 +01:00"; may be given several times
    #[arg(long, value_name = "HOURS")]
    pub(crate) window: Vec<Hours>,
    /// Have all nodes fetch the image before the first one begins
    #[arg(long)]
    pub(crate) prepare_first: bool,
    /// Wait for `fleet approve` before each wave
    #[arg(long)]
    pub(crate) approve_waves: bool,
    /// Number of failures at which the rollout stops [default: 1, unless a policy of the file says otherwise]
    #[arg(long, value_name = "COUNT")]
    pub(crate) max_failures: Option<NonZeroU32>,
    /// Have nodes that run the new version go back when the rollout stops
    #[arg(long)]
    pub(crate) roll_back: bool,
    /// The time that one node has for its upgrade (90s, 30m, 1h) [default: 30m, unless a policy of the file says otherwise]
    #[arg(long, value_name = "TIME")]
    pub(crate) patience: Option<Seconds>,
}

/// The shortest trial of a config: a node has to be asked several times within it.
const SHORTEST_TRIAL: Seconds = Seconds(30);

fn trial_time(text: &str) -> Result<Seconds, String> {
    let time: Seconds = text
        .parse()
        .map_err(|error: instar_rollout::NotSeconds| error.to_string())?;
    match time < SHORTEST_TRIAL {
        true => Err(format!("at least {SHORTEST_TRIAL}")),
        false => Ok(time),
    }
}

fn percent(text: &str) -> Result<Percent, String> {
    let number: u8 = text.parse().map_err(|_| "not a number".to_owned())?;
    Percent::try_from(number).map_err(str::to_owned)
}

fn rate(text: &str) -> Result<Rate, String> {
    let expected = || "expected something like 2/1h".to_owned();
    let (machines, per) = text.split_once('/').ok_or_else(expected)?;
    Ok(Rate {
        machines: machines.parse().map_err(|_| expected())?,
        per: per.parse().map_err(|_| expected())?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_have_their_units() {
        assert_eq!(u8::from(percent("25").unwrap()), 25);
        assert_eq!(rate("2/1h").unwrap().per, Seconds(3600));
        assert_eq!(rate("2/90").unwrap().per, Seconds(90));
        for bad in ["", "0", "101", "-1", "x"] {
            assert!(percent(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "2", "0/1h", "2/h", "2/1w"] {
            assert!(rate(bad).is_err(), "{bad:?}");
        }
    }
}
