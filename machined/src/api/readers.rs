//! The API for a process of the machine's own, with the role of a reader, over a connection that the process was given.

use std::convert::Infallible;
use std::sync::Arc;

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use instar_pki::{Role, roles_to_list};
use tokio::net::UnixStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::service::Routes;

use super::{caller, routes};
use crate::apid;
use crate::machine::Machine;

/// Serves one connection until it closes. The peer has the role of a reader, whatever its metadata claims.
pub async fn serve_reader(stream: UnixStream, machine: Arc<Machine>) -> anyhow::Result<()> {
    let roles = [Role::Reader];
    let list = HeaderValue::try_from(roles_to_list(&roles))?;
    let routes = routes(&machine).prepare();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (routes, list) = (routes.clone(), list.clone());
        async move { Ok::<_, Infallible>(answer(routes, request, list).await) }
    });
    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

async fn answer(
    mut routes: Routes,
    mut request: Request<Incoming>,
    roles: HeaderValue,
) -> Response<Body> {
    if !apid::may_call(request.uri().path(), &[Role::Reader], apid::Mode::Normal) {
        return Status::permission_denied("not authorized").into_http();
    }
    request.headers_mut().insert(caller::ROLES, roles);
    match routes.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
