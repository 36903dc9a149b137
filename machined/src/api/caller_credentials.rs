//! Checks whether a caller is still allowed to make its call at the moment when the request is complete.
//!
//! apid authorizes a call by its headers. Its body may come much later, or wait on its way; meanwhile the node may have got its config,
//! or have revoked the caller's authority. So for methods that change the node or may reveal its secrets, apid passes on the caller's
//! certificates. They are checked here once more by the config in force: at the end of the request's body, before any code reads the
//! message, and by [`CallerCredentials::check`] wherever a call has waited since.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::TryFutureExt as _;
use futures_util::future::InspectOk;
use http::{HeaderName, HeaderValue, Request};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use rustls_pki_types::CertificateDer;
use tonic::Status;
use tonic::body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::metrics::count_call;
use crate::machine::Machine;
use crate::{apid, intent};

/// The metadata key of the caller's certificates: each as DER in base64, the caller's own first, separated by commas. apid sets
/// it; callers cannot.
const CERTIFICATES: HeaderName = HeaderName::from_static("instar-certificates");

/// Size limit of that header, in bytes: the limit of a TLS handshake, in base64.
pub(super) const LONGEST_HEADERS: u32 = 128 << 10;

/// The certificates of one call's caller.
#[derive(Clone)]
pub(super) struct CallerCredentials {
    machine: Arc<Machine>,
    /// None if the caller was not asked for a certificate.
    certificates: Option<HeaderValue>,
    /// Whether the caller is a pod of this node, which has no certificate.
    is_pod: bool,
}

impl CallerCredentials {
    /// Returns the credentials of a request's caller; none if the caller is a process of the machine's own.
    pub(super) fn of<T>(request: &tonic::Request<T>) -> Option<Self> {
        request.extensions().get().cloned()
    }

    /// Checks that the caller would be admitted now.
    pub(super) fn check(&self) -> Result<(), Status> {
        let Some(configured) = self.machine.config() else {
            // Without a config every caller is admitted, and may do little.
            return Ok(());
        };
        if self.is_pod {
            return judge_pod(configured.config.kubernetes.is_some());
        }
        let accepted = intent::accepted_authorities(&configured.config)
            .map_err(|error| Status::internal(format!("{error:#}")))?;
        judge(&accepted, self.certificates.as_ref())
    }
}

/// Checks that a pod is admitted.
fn judge_pod(has_pods: bool) -> Result<(), Status> {
    match has_pods {
        true => Ok(()),
        false => Err(Status::permission_denied(
            "the node's machine config has no KubernetesConfig any more",
        )),
    }
}

/// Checks that a caller with these certificates is admitted when these authorities are accepted.
fn judge(accepted: &[Vec<u8>], certificates: Option<&HeaderValue>) -> Result<(), Status> {
    let Some(certificates) = certificates else {
        return Err(Status::permission_denied(
            "the node has a machine config by now; call with a certificate that it accepts",
        ));
    };
    let decoded = certificates.as_bytes().split(|byte| *byte == b',');
    let chain: Result<Vec<_>, _> = decoded
        .map(|encoded| BASE64.decode(encoded).map(CertificateDer::from))
        .collect();
    let is_let_in = chain.ok().map(|chain| apid::would_let_in(accepted, &chain));
    match is_let_in {
        Some(Ok(true)) => Ok(()),
        Some(Err(error)) => Err(Status::internal(format!("{error:#}"))),
        Some(Ok(false)) | None => Err(Status::unauthenticated(
            "the certificate is no longer accepted",
        )),
    }
}

/// A layer in front of all services that checks callers' certificates once more.
#[derive(Clone)]
pub(super) struct RecheckCredentials(pub(super) Arc<Machine>);

impl<S> Layer<S> for RecheckCredentials {
    type Service = Rechecking<S>;

    fn layer(&self, inner: S) -> Rechecking<S> {
        Rechecking {
            machine: self.0.clone(),
            inner,
        }
    }
}

/// A service behind that check.
#[derive(Clone)]
pub(super) struct Rechecking<S> {
    machine: Arc<Machine>,
    inner: S,
}

impl<S, B> Service<Request<Body>> for Rechecking<S>
where
    S: Service<Request<Body>, Response = http::Response<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = InspectOk<S::Future, fn(&S::Response)>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if !apid::is_judged_again(request.uri().path()) {
            return counted(self.inner.call(request));
        }
        let credentials = CallerCredentials {
            machine: self.machine.clone(),
            certificates: request.headers().get(CERTIFICATES).cloned(),
            is_pod: request
                .headers()
                .get(super::caller::PEER)
                .is_some_and(|peer| peer == apid::PODS),
        };
        request.extensions_mut().insert(credentials.clone());
        counted(self.inner.call(request.map(|body| {
            Body::new(CheckedAtEnd {
                body,
                check: Some(move || credentials.check()),
            })
        })))
    }
}

/// Counts the answer of a call.
fn counted<F, B, E>(call: F) -> InspectOk<F, fn(&http::Response<B>)>
where
    F: Future<Output = Result<http::Response<B>, E>>,
{
    call.inspect_ok(|answer| count_call(answer.headers()))
}

/// A request's body that ends only if a check allows it. A request whose body does not end reaches no method.
struct CheckedAtEnd<B, C> {
    body: B,
    /// Taken when the check is made.
    check: Option<C>,
}

impl<B, C> HttpBody for CheckedAtEnd<B, C>
where
    B: HttpBody<Data = Bytes, Error = Status> + Unpin,
    C: FnOnce() -> Result<(), Status> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let is_end = match &frame {
            None => true,
            Some(Ok(frame)) => frame.is_trailers(),
            Some(Err(_)) => false,
        };
        if is_end
            && let Some(check) = self.check.take()
            && let Err(refused) = check()
        {
            return Poll::Ready(Some(Err(refused)));
        }
        Poll::Ready(frame)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::time::{Duration, SystemTime};

    use http_body_util::{BodyExt as _, StreamBody};
    use instar_pki::{CertificateAuthority, Role};
    use tonic::Code;

    use super::*;

    #[test]
    fn who_is_let_in_is_said_by_the_authorities_of_now() {
        let now = SystemTime::now();
        let [one, other] = [(); 2].map(|()| CertificateAuthority::generate(now).unwrap());
        let der = |authority: &CertificateAuthority| {
            instar_pki::certificate_from_pem(&authority.certificate_pem()).unwrap()
        };
        let hour = Duration::from_secs(3600);
        let client = one.issue_client(&[Role::Admin], now, hour).unwrap();
        let old = one.issue_client(&[Role::Admin], now - 48 * hour, hour);
        let header = |der: &[u8]| HeaderValue::from_str(&BASE64.encode(der)).unwrap();
        let code = |accepted: &[Vec<u8>], certificates: Option<&HeaderValue>| {
            let refused = judge(accepted, certificates).err();
            refused.map(|status| status.code())
        };
        let shown = header(client.der());
        assert_eq!(code(&[der(&one)], Some(&shown)), None);
        assert_eq!(code(&[der(&other), der(&one)], Some(&shown)), None);
        let no_longer = Some(Code::Unauthenticated);
        assert_eq!(code(&[der(&other)], Some(&shown)), no_longer);
        assert_eq!(
            code(&[der(&one)], Some(&header(old.unwrap().der()))),
            no_longer
        );
        let nonsense = HeaderValue::from_static("AQ==,,?");
        assert_eq!(code(&[der(&one)], Some(&nonsense)), no_longer);
        // A caller from the time before the node had a config.
        assert_eq!(code(&[der(&one)], None), Some(Code::PermissionDenied));
    }

    /// Returns the number of frames that come through, and the result at the end.
    async fn read(frames: &[Frame<Bytes>], may: &Cell<bool>) -> (usize, Result<(), Code>) {
        let copies = frames.iter().map(|frame| match frame.data_ref() {
            Some(data) => Frame::data(data.clone()),
            None => Frame::trailers(http::HeaderMap::new()),
        });
        let mut body = CheckedAtEnd {
            body: StreamBody::new(tokio_stream::iter(copies.map(Ok).collect::<Vec<_>>())),
            check: Some(|| match may.get() {
                true => Ok(()),
                false => Err(Status::permission_denied("no")),
            }),
        };
        let mut count = 0;
        loop {
            match body.frame().await {
                Some(Ok(_)) => count += 1,
                Some(Err(status)) => return (count, Err(status.code())),
                None => return (count, Ok(())),
            }
        }
    }

    #[tokio::test]
    async fn a_request_that_may_not_be_is_never_whole() {
        let data = || Frame::data(Bytes::from_static(b"x"));
        let trailers = || Frame::trailers(http::HeaderMap::new());
        for (frames, before_end) in [
            (vec![], 0),
            (vec![data()], 1),
            (vec![data(), data(), trailers()], 2),
        ] {
            let whole = read(&frames, &Cell::new(true)).await;
            assert_eq!(whole, (frames.len(), Ok(())));
            let refused = read(&frames, &Cell::new(false)).await;
            assert_eq!(refused, (before_end, Err(Code::PermissionDenied)));
        }
    }
}
