/** CodeMirror with what the page needs of it. It is in a shadow root, so that its styles need no exception from the policy for content. */
import { autocompletion, type CompletionContext, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentLess, indentMore } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import { EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import type { Completion } from "../schema_paths.ts";

interface Terms {
  label: string;
  value: string;
  change: (text: string) => void;
  complete: (text: string, at: number) => Completion[];
}

const look = EditorView.theme({
  "&": { fontSize: "13px", color: "var(--text)", backgroundColor: "var(--surface)" },
  ".cm-content": {
    fontFamily: "ui-monospace, Menlo, Consolas, monospace",
    caretColor: "var(--text)",
    minHeight: "15rem",
  },
  ".cm-gutters": { backgroundColor: "var(--raised)", color: "var(--muted)", border: "none" },
  ".cm-activeLine": { backgroundColor: "transparent", outline: "1px solid var(--line)" },
  ".cm-scroller": { maxHeight: "65vh", overflow: "auto" },
  ".cm-tooltip": { backgroundColor: "var(--surface)", color: "var(--text)", border: "1px solid var(--line)" },
  "&.cm-focused": { outline: "2px solid var(--accent)" },
});

const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--good)" },
  { tag: [tags.number, tags.bool, tags.null, tags.keyword], color: "var(--wait)" },
  { tag: tags.comment, color: "var(--muted)", fontStyle: "italic" },
]);

export function open(root: HTMLElement, terms: Terms) {
  const shadow = root.shadowRoot ?? root.attachShadow({ mode: "open" });
  const complete = (context: CompletionContext) => {
    const word = context.matchBefore(/[\w./-]*/);
    if (!word || (word.from === word.to && !context.explicit)) return null;
    const options = terms.complete(context.state.doc.toString(), context.pos).map((one) => ({
      label: one.label,
      detail: one.detail,
      info: one.info || undefined,
    }));
    return options.length ? { from: word.from, options } : null;
  };
  let isQuiet = false;
  const view = new EditorView({
    parent: shadow,
    root: shadow,
    state: EditorState.create({
      doc: terms.value,
      extensions: [
        lineNumbers(),
        history(),
        indentOnInput(),
        highlightActiveLine(),
        yaml(),
        syntaxHighlighting(colours),
        lintGutter(),
        autocompletion({ override: [complete] }),
        // Tab moves on, as on the rest of the page: indentation has keys of its own.
        keymap.of([
          ...completionKeymap,
          ...defaultKeymap,
          ...historyKeymap,
          { key: "Mod-]", run: indentMore },
          { key: "Mod-[", run: indentLess },
        ]),
        EditorView.contentAttributes.of({ "aria-label": terms.label }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged && !isQuiet) terms.change(update.state.doc.toString());
        }),
        look,
      ],
    }),
  });
  return {
    set(text: string) {
      if (text === view.state.doc.toString()) return;
      isQuiet = true;
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
      isQuiet = false;
    },
    mark(mistakes: { line: number; message: string }[]) {
      const diagnostics = mistakes.map((one) => {
        const line = view.state.doc.line(Math.min(one.line, view.state.doc.lines));
        return { from: line.from, to: line.to, severity: "error" as const, message: one.message };
      });
      view.dispatch(setDiagnostics(view.state, diagnostics));
    },
    destroy: () => view.destroy(),
  };
}
