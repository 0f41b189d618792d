// A table that users can sort and filter. Long tables have several pages.

import { clean, el, say } from "./dom";

export interface Column<Row> {
  title: string;
  text: (row: Row) => string;
  /** The number to sort by, largest first. Without it, the table sorts by text. */
  number?: (row: Row) => number;
  /** Whether the cell is the row's name: a button that chooses the row. */
  chooses?: boolean;
}

export interface Action<Row> {
  title: string;
  does: (row: Row) => void;
}

export interface Options<Row> {
  title: string;
  columns: Column<Row>[];
  key: (row: Row) => string;
  nothing: string;
  /** Further words that the filter finds, besides the shown texts. */
  words?: (row: Row) => string;
  /** The column by which the table is sorted at first. */
  sorted?: number;
  choose?: (row: Row) => void;
  action?: Action<Row> | undefined;
  /** An action that needs no row, for example to add an object. */
  more?: { title: string; does: () => void } | undefined;
}

const PAGE_ROWS = 25;

interface Line<Row> {
  node: HTMLTableRowElement;
  cells: Element[];
  row: Row;
}

const collator = new Intl.Collator("en", { numeric: true });

/** Sorts the rows by number, the largest first. Rows without a number count as zero. */
function byNumber<Row>(rows: Row[], number: (row: Row) => number): Row[] {
  const valued = rows.map((row) => ({ row, value: number(row) || 0 }));
  valued.sort((a, b) => b.value - a.value);
  return valued.map(({ row }) => row);
}

let tables = 0;

export class Table<Row> {
  readonly node: HTMLElement;
  private readonly options: Options<Row>;
  private readonly body = el("tbody");
  private readonly filter: HTMLInputElement;
  private readonly count = el("span", { class: "quiet" });
  private readonly pager = el("div", { class: "pager" });
  private readonly heads: HTMLTableCellElement[];
  private rows: Row[] = [];
  private lines: Line<Row>[] = [];
  private sorted: number;
  private turned = false;
  private page = 0;
  private chosen: string | null = null;
  private inOrder: { of: Row[]; by: number; rows: Row[] } | null = null;

  constructor(options: Options<Row>) {
    this.options = options;
    this.sorted = options.sorted ?? 0;
    this.heads = options.columns.map((column, index) => this.head(column, index));
    const last = options.action ? [el("th", {}, el("span", { class: "unseen" }, "Actions"))] : [];
    const id = `table-${(tables += 1)}`;
    const label = `Filter ${options.title.toLowerCase()}`;
    this.filter = el("input", { type: "search", placeholder: "Filter", "aria-label": label, input: () => this.turn(0) });
    const scroll = el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": id },
      el("table", {}, el("thead", {}, el("tr", {}, ...this.heads, ...last)), this.body),
    );
    const { more } = options;
    const does = more ? el("button", { type: "button", class: "more", click: more.does }, more.title) : null;
    const top = el("header", {}, el("h2", { id }, options.title), this.count, this.filter, does);
    this.node = el("section", { class: "panel" }, top, scroll, this.pager);
    this.mark();
  }

  show(rows: Row[], chosen: string | null): void {
    this.rows = rows;
    this.chosen = chosen;
    this.render();
  }

  private head(column: Column<Row>, index: number): HTMLTableCellElement {
    const sort = el("button", { type: "button", click: () => this.sort(index) }, column.title);
    return el("th", { scope: "col", class: column.number ? "number" : "" }, sort);
  }

  private sort(index: number): void {
    this.turned = this.sorted === index && !this.turned;
    this.sorted = index;
    this.mark();
    this.turn(0);
  }

  private mark(): void {
    this.heads.forEach((head, index) => {
      if (index !== this.sorted) return head.removeAttribute("aria-sort");
      const down = (this.options.columns[index]!.number !== undefined) !== this.turned;
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  }

  private turn(page: number): void {
    this.page = page;
    this.render();
  }

  private wanted(): Row[] {
    const column = this.options.columns[this.sorted]!;
    const words = this.filter.value.trim().toLowerCase();
    const has = (row: Row): boolean =>
      this.options.columns.some((one) => one.text(row).toLowerCase().includes(words)) ||
      this.options.key(row).toLowerCase().includes(words) ||
      this.options.words?.(row).toLowerCase().includes(words) === true;
    const rows = words ? this.rows.filter(has) : this.rows;
    const sorted = column.number ? byNumber(rows, column.number) : this.byText(rows, column.text);
    return this.turned ? sorted.toReversed() : sorted;
  }

  /** Sorts the rows by text. Texts do not change, so the function sorts the same rows only once. */
  private byText(rows: Row[], text: (row: Row) => string): Row[] {
    const { inOrder } = this;
    if (inOrder && inOrder.of === rows && inOrder.by === this.sorted) return inOrder.rows;
    const named = rows.map((row) => ({ row, name: text(row) }));
    named.sort((a, b) => collator.compare(a.name, b.name));
    const sorted = named.map(({ row }) => row);
    this.inOrder = { of: rows, by: this.sorted, rows: sorted };
    return sorted;
  }

  private render(): void {
    const wanted = this.wanted();
    const pages = Math.max(1, Math.ceil(wanted.length / PAGE_ROWS));
    this.page = Math.min(this.page, pages - 1);
    const first = this.page * PAGE_ROWS;
    const shown = wanted.slice(first, first + PAGE_ROWS);
    shown.forEach((row, index) => this.line(index, row));
    for (const line of this.lines.splice(shown.length)) line.node.remove();
    const all = this.rows.length;
    say(this.count, wanted.length === all ? String(all) : `${wanted.length} of ${all}`);
    this.empty(shown.length === 0);
    this.filter.hidden = all <= 5 && this.filter.value === "";
    this.turns(pages);
  }

  private line(index: number, row: Row): void {
    const line = this.lines[index] ?? this.added(row);
    line.row = row;
    this.options.columns.forEach((column, place) => {
      const text = column.text(row);
      say(line.cells[place]!, text);
      if (column.chooses) line.cells[place]!.setAttribute("title", clean(this.options.key(row)));
    });
    const chosen = this.chosen === this.options.key(row);
    line.node.classList.toggle("chosen", chosen);
    line.node.querySelector("button.name")?.setAttribute("aria-pressed", String(chosen));
  }

  private added(row: Row): Line<Row> {
    const line: Line<Row> = { node: el("tr"), cells: [], row };
    for (const column of this.options.columns) {
      const cell = el("td", { class: column.number ? "number" : "" });
      const choose = this.options.choose;
      const inner =
        column.chooses && choose
          ? el("button", { type: "button", class: "name", click: () => choose(line.row) })
          : cell;
      if (inner !== cell) cell.append(inner);
      line.cells.push(inner);
      line.node.append(cell);
    }
    const action = this.options.action;
    if (action) {
      const does = el("button", { type: "button", click: () => action.does(line.row) }, action.title);
      line.node.append(el("td", { class: "action" }, does));
    }
    this.lines.push(line);
    this.body.append(line.node);
    return line;
  }

  private empty(is: boolean): void {
    const there = this.body.querySelector(".nothing");
    if (!is) return there?.remove();
    if (there) return;
    const span = this.options.columns.length + (this.options.action ? 1 : 0);
    this.body.append(
      el("tr", { class: "nothing" }, el("td", { colspan: span }, this.options.nothing)),
    );
  }

  private turns(pages: number): void {
    this.pager.hidden = pages === 1;
    if (pages === 1) return;
    if (!this.pager.firstChild) {
      const button = (title: string, by: number): HTMLButtonElement =>
        el("button", { type: "button", click: () => this.turn(Math.max(0, this.page + by)) }, title);
      this.pager.append(button("Previous", -1), el("span"), button("Next", 1));
    }
    const [previous, where, next] = this.pager.children as unknown as HTMLButtonElement[];
    say(where!, `page ${this.page + 1} of ${pages}`);
    previous!.disabled = this.page === 0;
    next!.disabled = this.page === pages - 1;
  }
}
