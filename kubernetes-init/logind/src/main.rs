//! The part of systemd-logind that kubelet asks for: it tells kubelet that the machine shuts down, and waits until kubelet has ended its pods.
//!
//! ```text
//!   kubelet ──Inhibit──────────────► logind      a lock: a pipe, whose other end stays here
//!   kubernetes-init ──SIGUSR1──────► logind      the machine shuts down
//!   kubelet ◄──PrepareForShutdown─── logind
//!   kubelet ──closes the lock──────► logind ends: all pods have ended
//! ```
//!
//! - `manager`: the D-Bus interface; `locks`: the locks that are held; `clients`: the connections.
//!
//! kubelet takes its orders for a shutdown from systemd-logind on D-Bus alone (graceful node shutdown). The decision: a program that answers
//! the four calls that kubelet makes, on a socket of its own, by a library for D-Bus. Debian's dbus-daemon and systemd-logind were the other
//! choice: logind does not start without systemd as PID 1.
//!
//! SIGTERM ends it without a word to kubelet: only SIGUSR1 means a shutdown, so that a restart of this program ends no pod.

#![forbid(unsafe_code)]

mod clients;
mod locks;
mod manager;

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

use clients::Clients;
use locks::Locks;
use manager::Manager;

/// The socket on which programs expect the system's D-Bus.
const SOCKET: &str = "/run/dbus/system_bus_socket";
/// The usage, for people.
const USAGE: &str = "usage: logind SECONDS [SOCKET]: the longest time that kubelet may take";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("logind: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let seconds = arguments.next().context(USAGE)?;
    let longest = Duration::from_secs(seconds.parse().context(USAGE)?);
    let socket = arguments.next().unwrap_or_else(|| SOCKET.to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(serve(Path::new(&socket), longest))
}

/// Serves until a signal ends this program.
async fn serve(socket: &Path, longest: Duration) -> Result<()> {
    let mut shutdown = signal(SignalKind::user_defined1()).context("cannot receive signals")?;
    let mut end = signal(SignalKind::terminate()).context("cannot receive signals")?;
    let listener = listen(socket)?;
    tell_ready()?;
    let locks = Locks::default();
    let mut clients = Clients::default();
    loop {
        tokio::select! {
            _ = end.recv() => return Ok(()),
            _ = shutdown.recv() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => clients.add(stream, Manager::new(longest, locks.clone())),
                Err(error) => {
                    eprintln!("logind: cannot accept a connection: {error}");
                    // Descriptors are used up, most likely: closed ones come back.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            },
        }
    }
    let told = clients.prepare_for_shutdown().await;
    println!(
        "the machine shuts down: {told} programs are told, {} hold a lock",
        locks.held()
    );
    if tokio::time::timeout(longest, locks.all_closed())
        .await
        .is_err()
    {
        println!(
            "{} locks are still held after {} s",
            locks.held(),
            longest.as_secs()
        );
    }
    Ok(())
}

/// Makes the socket, instead of an old one. Only root may connect: a lock delays a shutdown.
fn listen(socket: &Path) -> Result<UnixListener> {
    let failed = || format!("cannot make the socket {}", socket.display());
    if let Some(directory) = socket.parent() {
        fs::create_dir_all(directory).with_context(failed)?;
    }
    match fs::remove_file(socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(failed);
        }
        _ => {}
    }
    let listener = UnixListener::bind(socket).with_context(failed)?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600)).with_context(failed)?;
    Ok(listener)
}

/// Says that clients may connect (sd_notify(3)).
fn tell_ready() -> Result<()> {
    let Some(to) = env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let told = UnixDatagram::unbound().and_then(|socket| socket.send_to(b"READY=1", to));
    told.map(drop).context("cannot say that it is ready")
}

#[cfg(test)]
mod tests;
