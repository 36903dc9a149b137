#![allow(clippy::unwrap_used)]
use tokio::net::UnixStream;
use zbus::connection::Builder;
use zbus::{Connection, OwnedFd, fdo};

use super::*;
use crate::manager::{BUS, INTERFACE, MANAGER};

const LONGEST: Duration = Duration::from_secs(30);
/// A time in which nothing is to happen.
const MOMENT: Duration = Duration::from_millis(200);

/// A program that is connected, and all that serves it.
struct Served {
    program: Connection,
    clients: Clients,
    locks: Locks,
}

/// Connects a program.
async fn connect() -> Served {
    let (here, there) = UnixStream::pair().unwrap();
    let (mut clients, locks) = (Clients::default(), Locks::default());
    clients.add(here, Manager::new(LONGEST, locks.clone()));
    let program = Builder::unix_stream(there.into_std().unwrap()).p2p();
    let program = program.build().await.unwrap();
    Served {
        program,
        clients,
        locks,
    }
}

async fn inhibit(program: &Connection, what: &str) -> zbus::Result<OwnedFd> {
    let body = (what, "kubelet", "it ends pods", "delay");
    let reply = program.call_method(None::<&str>, MANAGER, Some(INTERFACE), "Inhibit", &body);
    reply.await?.body().deserialize()
}

#[tokio::test]
async fn a_lock_delays_the_end_until_it_is_closed() {
    let mut served = connect().await;
    let program = &served.program;
    let bus = Some("org.freedesktop.DBus");
    let hello = program.call_method(None::<&str>, BUS, bus, "Hello", &());
    let name: String = hello.await.unwrap().body().deserialize().unwrap();
    assert_eq!(name, ":1.1");
    let rule = "type='signal',member='PrepareForShutdown'";
    let matching = program.call_method(None::<&str>, BUS, bus, "AddMatch", &rule);
    matching.await.unwrap();
    let properties = Some("org.freedesktop.DBus.Properties");
    let which = (INTERFACE, "InhibitDelayMaxUSec");
    let longest = program.call_method(None::<&str>, MANAGER, properties, "Get", &which);
    let longest = longest.await.unwrap();
    let longest: zbus::OwnedVariant = longest.body().deserialize().unwrap();
    assert_eq!(u64::try_from(longest).unwrap(), 30_000_000);

    let lock = inhibit(program, "shutdown").await.unwrap();
    assert_eq!(served.locks.held(), 1);
    let mut messages = zbus::MessageStream::from(program);
    assert_eq!(served.clients.prepare_for_shutdown().await, 1);
    let told = futures_util::StreamExt::next(&mut messages).await.unwrap();
    let told = told.unwrap();
    assert_eq!(told.header().member().unwrap(), "PrepareForShutdown");
    assert!(told.body().deserialize::<bool>().unwrap());

    let (early, locks) = (served.locks.clone(), served.locks.clone());
    tokio::time::timeout(MOMENT, early.all_closed())
        .await
        .unwrap_err();
    drop(lock);
    let closed = tokio::time::timeout(LONGEST, locks.all_closed());
    closed.await.unwrap();
}

#[tokio::test]
async fn only_a_shutdown_can_be_delayed() {
    let served = connect().await;
    let refused = inhibit(&served.program, "sleep").await.unwrap_err();
    let text = fdo::Error::from(refused).to_string();
    assert!(
        text.contains("sleep cannot be inhibited by delay"),
        "{text}"
    );
    assert_eq!(served.locks.held(), 0);
}

#[tokio::test]
async fn programs_that_end_are_forgotten_with_their_locks() {
    let Served {
        program,
        mut clients,
        locks,
    } = connect().await;
    let lock = inhibit(&program, "shutdown").await.unwrap();
    drop((program, lock));
    let told = clients.prepare_for_shutdown().await;
    assert!(told <= 1, "{told} programs");
    locks.all_closed().await;
    assert_eq!(locks.held(), 0);
}
