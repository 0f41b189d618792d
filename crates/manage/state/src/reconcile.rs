//! Changes a running target from one document to another, or leaves it unchanged.

use crate::steps::Step;
use std::fmt;

/// A running target, which takes steps.
pub trait Running {
    /// The data to roll a step back. It holds the disks that the step removed: a RAM disk's data
    /// would otherwise be lost.
    type Undo;

    /// Takes a step. If that fails, nothing has changed.
    ///
    /// # Errors
    /// One sentence.
    fn take(&mut self, step: &Step) -> Result<Self::Undo, String>;

    /// Rolls a step back. The caller has rolled back all later ones.
    ///
    /// # Errors
    /// One sentence; the step then stays.
    fn take_back(&mut self, undo: Self::Undo) -> Result<(), String>;
}

/// Why changing a target failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// The step that failed.
    pub step: Box<Step>,
    /// One sentence.
    pub reason: String,
    /// The failed rollbacks, a sentence each; empty if the old state is restored.
    pub left: Vec<String>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        for sentence in &self.left {
            write!(f, "; and this could not be rolled back: {sentence}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failed {}

/// Takes all steps, or none.
///
/// # Errors
/// The step that failed; the earlier ones are rolled back.
pub fn reconcile<R: Running>(running: &mut R, steps: &[Step]) -> Result<Vec<R::Undo>, Failed> {
    let mut done = Vec::new();
    for step in steps {
        match running.take(step) {
            Ok(undo) => done.push(undo),
            Err(reason) => {
                let left = take_all_back(running, done);
                return Err(Failed { step: Box::new(step.clone()), reason, left });
            }
        }
    }
    Ok(done)
}

/// Rolls back the steps of [`reconcile`], the last first. Returns the failures, as sentences.
pub fn take_all_back<R: Running>(running: &mut R, done: Vec<R::Undo>) -> Vec<String> {
    done.into_iter().rev().filter_map(|undo| running.take_back(undo).err()).collect()
}
