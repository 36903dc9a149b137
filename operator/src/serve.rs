//! The operator's own page for machines: whether it lives, and figures as Prometheus reads them.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use instar_http_server::{Limits, accept, requests};
use kube::ResourceExt;
use kube::runtime::reflector::Store;
use tokio::net::TcpListener;

use crate::api::{Pool, PoolStatus};
use crate::failure::Error;
use crate::lease::Leadership;

const LIMITS: Limits = Limits {
    connections: 16,
    life: Duration::from_secs(60),
};
/// Timeout for the head of a request.
const HEAD: Duration = Duration::from_secs(5);

/// The format of the figures, without which Prometheus takes no page.
const FIGURES: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// The pools as they are shown.
#[derive(Clone, Default)]
pub(crate) struct Shown(Rc<RefCell<Vec<(String, PoolStatus)>>>);

impl Shown {
    pub(crate) fn set(&self, pools: &Store<Pool>) {
        let pools = pools.state();
        let pools = pools.iter().map(|pool| {
            let mut status = pool.status.clone().unwrap_or_default();
            status.rollout = None;
            status.set_aside = None;
            (pool.name_any(), status)
        });
        *self.0.borrow_mut() = pools.collect();
    }
}

/// Serves until the process ends.
pub(crate) async fn begin(
    listen: SocketAddr,
    lease: Rc<Leadership>,
    shown: Shown,
) -> Result<(), Error> {
    let listener = TcpListener::bind(listen).await;
    let listener =
        listener.map_err(|error| Error::Other(format!("cannot listen on {listen}: {error}")))?;
    tokio::task::spawn_local(accept(listener, LIMITS, async move |stream| {
        let served = requests(stream, HEAD, async |request| {
            answer(request.uri().path(), lease.is_held(), &shown.0.borrow())
        });
        served.await;
    }));
    Ok(())
}

fn answer(path: &str, leads: bool, pools: &[(String, PoolStatus)]) -> Response<Full<Bytes>> {
    let (status, format, text) = match path {
        "/healthz" => (StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/metrics" => (StatusCode::OK, FIGURES, metrics(leads, pools)),
        _ => (
            StatusCode::NOT_FOUND,
            TEXT,
            "there are /healthz and /metrics\n".to_owned(),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, format);
    response
}

/// A figure of a pool.
type Figure = fn(&PoolStatus) -> u32;

fn metrics(leads: bool, pools: &[(String, PoolStatus)]) -> String {
    let figures: [(&str, Figure); 3] = [
        ("nodes", |status| status.nodes),
        ("updated_nodes", |status| status.updated),
        ("failed_nodes", |status| status.failed),
    ];
    let mut lines = vec![
        "# TYPE instar_operator_leads gauge".to_owned(),
        format!("instar_operator_leads {}", u8::from(leads)),
    ];
    for (name, figure) in figures {
        lines.push(format!("# TYPE instar_pool_{name} gauge"));
        for (pool, status) in pools {
            let figure = figure(status);
            lines.push(format!("instar_pool_{name}{{pool=\"{pool}\"}} {figure}"));
        }
    }
    lines.push("# TYPE instar_pool_phase gauge".to_owned());
    for (pool, status) in pools {
        let phase = status.phase.as_deref().unwrap_or("Waiting");
        lines.push(format!(
            "instar_pool_phase{{pool=\"{pool}\",phase=\"{phase}\"}} 1"
        ));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_says_its_format() {
        let figures = "text/plain; version=0.0.4; charset=utf-8";
        let text = "text/plain; charset=utf-8";
        for (path, status, format) in [
            ("/metrics", 200, figures),
            ("/healthz", 200, text),
            ("/", 404, text),
        ] {
            let answer = answer(path, true, &[]);
            assert_eq!(answer.status(), status, "{path}");
            assert_eq!(answer.headers()[CONTENT_TYPE], format, "{path}");
        }
    }

    #[test]
    fn figures_are_those_of_the_pools() {
        let status = PoolStatus {
            nodes: 5,
            updated: 2,
            failed: 1,
            phase: Some("Rolling".to_owned()),
            ..PoolStatus::default()
        };
        let text = metrics(true, &[("lab".to_owned(), status)]);
        for line in [
            "instar_operator_leads 1",
            "instar_pool_nodes{pool=\"lab\"} 5",
            "instar_pool_updated_nodes{pool=\"lab\"} 2",
            "instar_pool_failed_nodes{pool=\"lab\"} 1",
            "instar_pool_phase{pool=\"lab\",phase=\"Rolling\"} 1",
        ] {
            assert!(
                text.lines().any(|other| other == line),
                "{line} is not in {text}"
            );
        }
    }
}
