//! Kubelets for jobs alone: each pod that has a node ends well at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::api_proxy::PlainApi;

/// The pause between two looks at the pods: a pod runs for half of it, as an upgrade of a simulated machine takes half a second.
const LOOK: Duration = Duration::from_millis(500);

/// The kubelets, until they are dropped.
#[derive(Debug)]
pub struct JobKubelets {
    is_over: Arc<AtomicBool>,
    ended: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl JobKubelets {
    /// Starts those of all nodes, for the pods of a namespace.
    pub fn start(api: PlainApi, namespace: &'static str) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ended = Arc::new(AtomicUsize::new(0));
        let (until, count) = (is_over.clone(), ended.clone());
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Acquire) {
                match end_pods(&api, namespace) {
                    Ok(pods) => drop(count.fetch_add(pods, Ordering::AcqRel)),
                    Err(error) => eprintln!("pods of {namespace} are not ended: {error:#}"),
                }
                std::thread::sleep(LOOK);
            }
        });
        Self {
            is_over,
            ended,
            thread: Some(thread),
        }
    }

    /// The number of pods that they have ended.
    pub fn ended(&self) -> usize {
        self.ended.load(Ordering::Acquire)
    }
}

impl Drop for JobKubelets {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }
}

/// Ends the pods that have a node and have not ended; returns how many these were.
fn end_pods(api: &PlainApi, namespace: &str) -> anyhow::Result<usize> {
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let bound = "fieldSelector=status.phase%3DPending%2Cspec.nodeName%21%3D";
    let listed = api.get(&format!("{pods}?{bound}"))?;
    let listed = listed["items"].as_array().context("no list of pods")?;
    let names = listed
        .iter()
        .filter_map(|pod| pod["metadata"]["name"].as_str());
    let ended: Value = json!({"status": {"phase": "Succeeded"}});
    let mut count = 0;
    for name in names {
        api.merge(&format!("{pods}/{name}/status"), &ended)?;
        count += 1;
    }
    Ok(count)
}
