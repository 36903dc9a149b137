//! The plan for the container, in its file: one writer at a time, which also tells the container of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use instar_kubernetes_plan::{PLAN, Plan};

use super::control;
use crate::base::{blocking_io, removal, whole_file};

/// The plan's file; clones share the right to write it.
#[derive(Debug, Clone)]
pub struct PlanFile {
    file: PathBuf,
    /// Whether the container was told of what is in the file. Its writer holds this. It begins anew with machined: the one before may have ended
    /// between the two.
    is_told: Arc<tokio::sync::Mutex<bool>>,
    times_forgotten: Arc<AtomicU64>,
}

impl Default for PlanFile {
    fn default() -> Self {
        PlanFile::at(&control().join(PLAN))
    }
}

impl PlanFile {
    fn at(file: &Path) -> Self {
        PlanFile {
            file: file.to_owned(),
            is_told: Arc::default(),
            times_forgotten: Arc::default(),
        }
    }

    /// Writes another plan; returns false if it is the one that is there. The number of restarts of each service stays.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn set(&self, plan: Plan) -> anyhow::Result<bool> {
        self.change(move |known| {
            let restarts = known.map(|known| known.restarts.clone());
            Ok(Plan {
                restarts: restarts.unwrap_or_default(),
                ..plan
            })
        })
        .await
    }

    /// Has a service start again.
    ///
    /// # Errors
    /// There is no plan, so that no service runs by one; or the file cannot be written.
    pub async fn restart(&self, service: &str) -> anyhow::Result<()> {
        let service = service.to_owned();
        self.change(move |known| {
            // One without extensions would end all services.
            let mut plan = known.cloned().context(
                "the node has no plan yet, by which its services start; `get kubernetes` says what it waits for",
            )?;
            *plan.restarts.entry(service).or_default() += 1;
            Ok(plan)
        })
        .await?;
        Ok(())
    }

    /// Removes the plan, as its container does not run: the extensions are checked again before they run again.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub async fn forget(&self) -> anyhow::Result<()> {
        let _order = self.is_told.lock().await;
        // Whoever has given the plan gives it again, also if nobody knows whether it is gone.
        self.times_forgotten.fetch_add(1, Ordering::Relaxed);
        let file = self.file.clone();
        let remove = move || removal::file(&file);
        Ok(blocking_io::within(blocking_io::ANSWER, remove).await??)
    }

    /// How often the plan was removed: one that was given before another removal has to be given again.
    pub fn times_forgotten(&self) -> u64 {
        self.times_forgotten.load(Ordering::Relaxed)
    }

    /// Tells the container of the plan, unless it was told since the last change of it.
    ///
    /// # Errors
    /// It cannot be told; then it is the next time.
    pub async fn tell(&self, tell: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
        let mut is_told = self.is_told.lock().await;
        if !*is_told {
            tell.await?;
            *is_told = true;
        }
        Ok(())
    }

    async fn change(
        &self,
        next: impl FnOnce(Option<&Plan>) -> anyhow::Result<Plan> + Send + 'static,
    ) -> anyhow::Result<bool> {
        let mut is_told = self.is_told.lock().await;
        let file = self.file.clone();
        let change = move || {
            // A plan that cannot be read is replaced.
            let known: Option<Plan> = whole_file::read_json(&file).unwrap_or_default();
            let plan = next(known.as_ref())?;
            let differs = known.as_ref() != Some(&plan);
            if differs {
                whole_file::replace_json(&file, 0o600, &plan)?;
            }
            anyhow::Ok(differs)
        };
        // After an error, or for a caller that has gone, the new plan may be there all the same.
        let was_told = std::mem::take(&mut *is_told);
        let changed = blocking_io::within(blocking_io::ANSWER, change).await??;
        *is_told = was_told && !changed;
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use super::*;

    fn plan(node: &str) -> Plan {
        Plan {
            node: node.to_owned(),
            ..Plan::default()
        }
    }

    fn file(folder: &tempfile::TempDir) -> PlanFile {
        PlanFile::at(&folder.path().join(PLAN))
    }

    #[tokio::test]
    async fn the_container_is_told_until_it_has_been() {
        let folder = tempfile::tempdir().unwrap();
        let (mut of_machined, told) = (file(&folder), Cell::new(false));
        // The plan, whether machined has started again before it, whether the container can be told → it is new, and was told of it
        for (node, restarted, can, is_new, is_told) in [
            ("a", false, false, true, true),
            ("a", false, true, false, true),
            ("a", false, true, false, false),
            ("b", false, true, true, true),
            ("b", true, true, false, true),
            ("b", false, true, false, false),
        ] {
            if restarted {
                of_machined = file(&folder);
            }
            assert_eq!(of_machined.set(plan(node)).await.unwrap(), is_new);
            told.set(false);
            let tell = async {
                told.set(true);
                anyhow::ensure!(can, "no such process");
                Ok(())
            };
            let result = of_machined.tell(tell).await;
            assert_eq!(told.get(), is_told, "{node} {restarted} {can}");
            assert_eq!(result.is_err(), is_told && !can);
        }
    }

    #[tokio::test]
    async fn a_service_starts_again_by_a_plan_alone() {
        let folder = tempfile::tempdir().unwrap();
        let plans = file(&folder);
        let error = plans.restart("kubelet").await.unwrap_err().to_string();
        assert!(error.contains("the node has no plan yet"), "{error}");
        assert!(!plans.file.exists());
        plans.set(plan("a")).await.unwrap();
        plans.restart("kubelet").await.unwrap();
        let known: Option<Plan> = whole_file::read_json(&plans.file).unwrap();
        let known = known.unwrap();
        assert_eq!((known.node.as_str(), known.restarts["kubelet"]), ("a", 1));
        // The same one from its writer keeps the number.
        assert!(!plans.set(plan("a")).await.unwrap());
    }

    #[tokio::test]
    async fn a_plan_that_was_forgotten_is_gone_and_given_again() {
        let folder = tempfile::tempdir().unwrap();
        let plans = file(&folder);
        plans.forget().await.unwrap();
        let given_at = plans.times_forgotten();
        plans.set(plan("a")).await.unwrap();
        plans.clone().forget().await.unwrap();
        assert!(!plans.file.exists());
        assert_ne!(plans.times_forgotten(), given_at);
        assert!(plans.set(plan("a")).await.unwrap());
    }
}
