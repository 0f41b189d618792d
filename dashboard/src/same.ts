// Whether what was made of some values can stay as it is.

/** Whether these are the very values that there were before. */
export function isSame(now: readonly unknown[], before: readonly unknown[]): boolean {
  return now.length === before.length && now.every((one, index) => one === before[index]);
}
