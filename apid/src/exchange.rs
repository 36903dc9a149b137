//! The bodies of requests and responses that apid passes on, and responses that it makes itself.

use std::convert::Infallible;

use anyhow::Context as _;
use http::{Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Either, Empty, Full};
use hyper::body::{Bytes, Incoming};

use super::grpc_status::{self, Code};
use super::revocable::Revocable;
use super::uploads::Upload;

/// The body of a request to machined or to other nodes: the caller's own, or a copy for one of several nodes.
pub(super) type RequestBody = Either<Revocable<Upload>, Revocable<Full<Bytes>>>;
/// The body of a response to the caller: machined's or a node's as it came, or one made here.
pub(super) type Body = Either<Incoming, UnsyncBoxBody<Bytes, Infallible>>;

/// The message for a caller whose authority was removed.
pub(super) const NO_LONGER_ACCEPTED: &str = "the certificate is no longer accepted";

/// A response without a body: a status with the reason of the refusal.
pub(super) fn refuse(code: Code, message: &str) -> Response<Body> {
    grpc_status::reply::<Empty<Bytes>>(code, message).map(|body| Either::Right(body.boxed_unsync()))
}

/// The URI of the same method at another address.
pub(super) fn at(method: &Uri, scheme: &str, authority: &str) -> anyhow::Result<Uri> {
    let path = method.path_and_query().context("the request has no path")?;
    let moved = Uri::builder().scheme(scheme).authority(authority);
    Ok(moved.path_and_query(path.clone()).build()?)
}
