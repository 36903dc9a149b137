//! The connection to the kernel's network, by rtnetlink(7).

use std::future::ready;
use std::io;

use futures_util::{Stream, StreamExt};
use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_proto::{
    ConnectionHandle,
    sys::{AsyncSocket, SocketAddr, protocols::NETLINK_ROUTE},
};
use tokio::task::JoinHandle;

use super::{
    KernelState, Step,
    rtnetlink::{self, Malformed, Message, Request},
};

/// Why the kernel's network could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// A netlink socket could not be opened.
    #[error(
        "cannot open a netlink socket; machined needs CAP_NET_ADMIN and a kernel with rtnetlink"
    )]
    Open(#[source] io::Error),
    /// The kernel's state could not be read.
    #[error("cannot read the kernel's {what}")]
    Read {
        /// `links`, `addresses` or `routes`.
        what: &'static str,
        /// Why.
        source: RequestError,
    },
    /// The kernel's answer was lost.
    #[error("the kernel did not answer on the netlink socket")]
    NoAnswer,
    /// The kernel refused a step.
    #[error("cannot {step}")]
    Apply {
        /// The step.
        step: String,
        /// Why.
        source: RequestError,
    },
}

/// Why one request to the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The request could not be sent, or its answer ends in the middle.
    #[error("the netlink socket is closed")]
    Closed,
    /// The kernel answers with an error.
    #[error("the kernel refuses the request")]
    Refused(#[source] io::Error),
    /// The kernel had no room for all of its answer.
    #[error("the kernel's answer is incomplete")]
    Incomplete,
    /// A part of the answer has not the format of rtnetlink(7).
    #[error("cannot decode the kernel's answer")]
    Malformed(#[from] Malformed),
}

/// The notifications that tell of changes of links, addresses and routes. A default route of IPv6 may come and go with a router's
/// advertisement, without an address.
const GROUPS: libc::c_int = libc::RTMGRP_LINK
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_ROUTE;

/// A connection to the kernel's network, which closes when this value is dropped.
pub(super) struct Kernel {
    handle: ConnectionHandle<Message>,
    driver: JoinHandle<()>,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Kernel {
    /// Opens the connection, and a stream with an item for each change of links, of addresses, and of routes that may matter.
    pub(super) fn open() -> Result<(Self, impl Stream<Item = ()> + Send + Unpin), NetlinkError> {
        let (mut connection, handle, messages) =
            netlink_proto::new_connection(NETLINK_ROUTE).map_err(NetlinkError::Open)?;
        let socket = connection.socket_mut().socket_mut();
        socket
            .bind(&SocketAddr::new(0, GROUPS as u32))
            .map_err(NetlinkError::Open)?;
        // The end of a list is a message of its own: without it, a list that breaks off looks like a short one.
        connection.set_forward_done(true);
        let driver = crate::base::task::spawn(connection);
        let changes = messages.filter_map(|(message, _)| ready(is_news(&message)));
        Ok((Self { handle, driver }, changes))
    }

    /// Reads links, addresses and main-table routes.
    pub(super) async fn read(&self) -> Result<KernelState, NetlinkError> {
        let failed = |what| move |source| NetlinkError::Read { what, source };
        let mut links = self
            .list(rtnetlink::all_links(), |message| {
                rtnetlink::link(message).map(Some)
            })
            .await
            .map_err(failed("links"))?;
        links.sort_by_key(|link| link.index);
        let addresses = self
            .list(rtnetlink::all_addresses(), rtnetlink::address)
            .await
            .map_err(failed("addresses"))?;
        let mut routes = Vec::new();
        for request in rtnetlink::all_routes() {
            let found = self.list(request, rtnetlink::route).await;
            routes.extend(found.map_err(failed("routes"))?);
        }
        Ok(KernelState {
            links,
            addresses,
            routes,
        })
    }

    /// Applies one step.
    pub(super) async fn apply(&self, step: &Step) -> Result<(), NetlinkError> {
        self.confirm(rtnetlink::request(step))
            .await
            .map_err(|source| NetlinkError::Apply {
                step: step.to_string(),
                source,
            })
    }

    /// Sends a request for a list, and decodes the objects that are of interest.
    async fn list<T>(
        &self,
        request: Request,
        decode: fn(&Message) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, RequestError> {
        let mut answer = self.send(request)?;
        let mut objects = Vec::new();
        while let Some(message) = answer.next().await {
            match message.payload {
                NetlinkPayload::InnerMessage(message) => objects.extend(decode(&message)?),
                NetlinkPayload::Done(done) if done.code < 0 => return Err(refused(done.code)),
                NetlinkPayload::Done(_) => return Ok(objects),
                NetlinkPayload::Error(error) => return Err(refused(error.raw_code())),
                _ => return Err(RequestError::Incomplete),
            }
        }
        Err(RequestError::Closed)
    }

    /// Sends a request that changes something, and waits until the kernel has done it.
    async fn confirm(&self, request: Request) -> Result<(), RequestError> {
        let mut answer = self.send(request)?;
        while let Some(message) = answer.next().await {
            if let NetlinkPayload::Error(error) = message.payload {
                return Err(refused(error.raw_code()));
            }
        }
        Ok(())
    }

    fn send(
        &self,
        request: Request,
    ) -> Result<impl Stream<Item = NetlinkMessage<Message>> + use<>, RequestError> {
        let mut header = NetlinkHeader::default();
        header.flags = request.flags;
        let payload = NetlinkPayload::InnerMessage(request.message);
        let kernel = SocketAddr::new(0, 0);
        self.handle
            .request(NetlinkMessage::new(header, payload), kernel)
            .map_err(|_| RequestError::Closed)
    }
}

/// Returns an item for a notification that is to be looked at: all but those of the routes of others.
fn is_news(message: &NetlinkMessage<Message>) -> Option<()> {
    match &message.payload {
        NetlinkPayload::InnerMessage(message) => rtnetlink::is_news(message).then_some(()),
        // Notifications were lost.
        _ => Some(()),
    }
}

/// The error for a code of the kernel, which is a negative error number.
fn refused(code: i32) -> RequestError {
    RequestError::Refused(io::Error::from_raw_os_error(code.saturating_neg()))
}
