// Finds, makes and updates elements. Texts become text nodes, never HTML.

const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);

/** An element with these attributes and children; a child that is a string becomes text. */
function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for the elements of a chart. */
function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Sets a text if it differs, so that what has not changed is not announced or drawn again. */
function setText(target, text) {
  if (target.textContent !== text) {
    target.textContent = text;
  }
}

function setAttribute(target, name, value) {
  if (value === null) {
    target.removeAttribute(name);
  } else if (target.getAttribute(name) !== value) {
    target.setAttribute(name, value);
  }
}

/**
 * Makes the children of `parent` match `items`. Children whose key stays are kept, and with them the focus. Keys that are
 * shown in part may be equal; then their children are made anew.
 */
function updateList(parent, items, keyOf, create, update) {
  const earlier = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const key = String(keyOf(item));
    let child = earlier.get(key);
    earlier.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    if (parent.children[index] !== child) {
      parent.insertBefore(child, parent.children[index] ?? null);
    }
    update(child, item);
  });
  // The others are at the end now.
  while (parent.children.length > items.length) {
    parent.lastElementChild.remove();
  }
}

/** A row of a table: the first cell is its heading. Cells from `numbers` on are aligned as numbers. */
function row(cells, numbers) {
  const name = (index) => (index === 0 ? { scope: "row" } : index >= numbers ? { class: "number" } : {});
  const made = element("tr");
  for (let index = 0; index < cells; index += 1) {
    made.append(element(index === 0 ? "th" : "td", name(index)));
  }
  return made;
}

/** Sets the texts of a row's cells. */
function setCells(tableRow, texts) {
  texts.forEach((text, index) => setText(tableRow.cells[index], text));
}

