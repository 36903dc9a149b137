//! The plan for the container, in its file: one writer at a time.

use std::path::PathBuf;
use std::sync::Arc;

use instar_kubernetes_plan::{PLAN, Plan};

use super::control;
use crate::base::{blocking_io, whole_file};

/// The plan's file; clones share the right to write it.
#[derive(Debug, Clone, Default)]
pub struct PlanFile {
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl PlanFile {
    /// Writes another plan; returns false if it is the one that is there. The number of restarts of each service stays.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn set(&self, plan: Plan) -> anyhow::Result<bool> {
        self.change(move |known| Plan {
            restarts: known.restarts.clone(),
            ..plan
        })
        .await
    }

    /// Has a service start again.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn restart(&self, service: &str) -> anyhow::Result<()> {
        let service = service.to_owned();
        self.change(move |known| {
            let mut plan = known.clone();
            *plan.restarts.entry(service).or_default() += 1;
            plan
        })
        .await?;
        Ok(())
    }

    async fn change(
        &self,
        next: impl FnOnce(&Plan) -> Plan + Send + 'static,
    ) -> anyhow::Result<bool> {
        let _order = self.writing.lock().await;
        let file: PathBuf = control().join(PLAN);
        let change = move || {
            // A plan that cannot be read is replaced.
            let known: Option<Plan> = whole_file::read_json(&file).unwrap_or_default();
            let plan = next(&known.clone().unwrap_or_default());
            let differs = known.as_ref() != Some(&plan);
            if differs {
                whole_file::replace_json(&file, 0o600, &plan)?;
            }
            Ok(differs)
        };
        blocking_io::within(blocking_io::ANSWER, change).await?
    }
}
