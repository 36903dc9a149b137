//! What comes and goes in a call, as apid passes it on: the bodies of requests and answers, and answers made here.

use std::convert::Infallible;

use anyhow::Context as _;
use http::{Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Either, Empty, Full};
use hyper::body::{Bytes, Incoming};

use super::grpc_status::{self, Code};
use super::revocable::Revocable;
use super::uploads::Upload;

/// What goes to machined and to other nodes: a caller's own body, or one that is sent to several nodes.
pub(super) type RequestBody = Either<Revocable<Upload>, Revocable<Full<Bytes>>>;
/// What goes back: as it came, or made here.
pub(super) type Body = Either<Incoming, UnsyncBoxBody<Bytes, Infallible>>;

/// What a caller is told whose authority was removed.
pub(super) const NO_LONGER_ACCEPTED: &str = "the certificate is no longer accepted";

/// An answer that only says why there is none.
pub(super) fn refuse(code: Code, message: &str) -> Response<Body> {
    grpc_status::reply::<Empty<Bytes>>(code, message).map(|body| Either::Right(body.boxed_unsync()))
}

/// The same method elsewhere.
pub(super) fn at(method: &Uri, scheme: &str, authority: &str) -> anyhow::Result<Uri> {
    let path = method.path_and_query().context("the request has no path")?;
    let moved = Uri::builder().scheme(scheme).authority(authority);
    Ok(moved.path_and_query(path.clone()).build()?)
}
