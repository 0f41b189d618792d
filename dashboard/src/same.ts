// Checks whether the inputs of a derived value have changed.

/** Whether all values are identical (`===`) to the values before. */
export function isSame(now: readonly unknown[], before: readonly unknown[]): boolean {
  return now.length === before.length && now.every((one, index) => one === before[index]);
}
