//! What a process that has died may still have carried out, ended without taking its place: for
//! whoever begins with a new disk.

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

/// Controllers of a process that has died. The time that one is waited for that cannot be ended
/// begins when it is added.
#[derive(Default)]
pub struct OrphanedControllers {
    lost: Vec<Arc<Fencing>>,
}

impl OrphanedControllers {
    /// Adds those that are not known yet.
    pub fn add(&mut self, lives: Vec<ControllerLife>) {
        for life in lives.into_iter().filter(|life| !life.is_mark()) {
            if !self.lost.iter().any(|known| known.life == life) {
                let lost = Fencing::new(life);
                lost.lost_since();
                self.lost.push(Arc::new(lost));
            }
        }
    }

    /// Whether all of them are over.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lost.is_empty()
    }

    /// Has them ended by a controller that is connected for this, as [`Disk`](super::Disk) does
    /// with those that it has lost, and asks for as long as `patience` allows. What it forgets is
    /// over.
    ///
    /// # Errors
    /// When no controller can be connected in this time.
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
        // What was not answered in time is as good as refused.
        asked.flatten().unwrap_or(Ok(()))
    }
}

/// Asks until all of them are over.
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
            if is_over(through.inner(), lost).await {
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
