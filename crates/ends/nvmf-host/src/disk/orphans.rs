//! Closes the controllers of a dead process before a new disk starts. That disk does not take over
//! the state of the dead process.

use super::fencing::{ControllerLife, Fencing, is_over};
use super::options::DiskOptions;
use crate::control::{Control, Local};
use crate::controller::Controller;
use crate::error::Error;
use crate::limits;
use crate::url::Url;
use farblock_reactor::os;
use std::sync::Arc;
use std::time::Duration;

/// The controllers of a dead process. If the target cannot close a controller, it counts as ended
/// when its [quiesce time](ControllerLife::quiesce_time) has passed since [`add`](Self::add).
#[derive(Default)]
pub struct OrphanedControllers {
    lost: Vec<Arc<Fencing>>,
}

impl OrphanedControllers {
    /// Adds controllers. Ignores controllers that were added before.
    pub fn add(&mut self, lives: Vec<ControllerLife>) {
        for life in lives.into_iter().filter(|life| !life.is_mark()) {
            if !self.lost.iter().any(|known| known.life == life) {
                let lost = Fencing::new(life);
                lost.lost_since();
                self.lost.push(Arc::new(lost));
            }
        }
    }

    /// Whether all controllers have ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lost.is_empty()
    }

    /// Connects to the target and closes the controllers, in the same way as a
    /// [`Disk`](super::Disk) closes the controllers that it has lost. Repeats its requests for at
    /// most `patience`. Removes the controllers that have ended.
    ///
    /// # Errors
    /// Fails if the host cannot connect to the target. Succeeds if the time runs out first.
    pub fn end(
        &mut self,
        url: &Url,
        options: &DiskOptions,
        patience: Duration,
    ) -> Result<(), Error> {
        if self.lost.is_empty() {
            return Ok(());
        }
        let control = Control::shared(options.connection.engine).map_err(Error::System)?;
        let for_loop = Arc::clone(&control);
        let (url, options, lost) = (url.clone(), options.clone(), self.lost.clone());
        let asked = control.run(move |local| async move {
            let ask = ask(&local, &for_loop, &url, &options, &lost);
            local.until(os::now() + patience, ask).await
        });
        self.lost.retain(|lost| !lost.is_finished());
        // If the target did not answer in time, the controllers stay and the call still succeeds.
        asked.flatten().unwrap_or(Ok(()))
    }
}

/// Asks the target repeatedly until all controllers have ended.
async fn ask(
    local: &Local,
    control: &Arc<Control>,
    url: &Url,
    options: &DiskOptions,
    lost: &[Arc<Fencing>],
) -> Result<(), Error> {
    let through = Controller::connect_on(local, control, url, &options.connection, None).await?;
    let mut pause = limits::FINISH_PAUSE;
    loop {
        for lost in lost.iter().filter(|lost| !lost.is_finished()) {
            if is_over(through.association(), lost).await {
                lost.set_finished();
            }
        }
        if lost.iter().all(|lost| lost.is_finished()) {
            return Ok(());
        }
        local.sleep_until(os::now() + pause).await;
        pause = (pause * 2).min(limits::FINISH_PAUSE_MAX);
    }
}
