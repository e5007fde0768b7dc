// Memory by line, as a trace found it: an amount behind each line, and a bar beside it as long as its share.
import * as vscode from 'vscode'

/** Of the notification tunecast/traceLines. `line` counts from 0, as in all of the protocol. */
export interface TraceLines { uri: string; lines: { line: number; bytes: number; text: string }[] }

const STEPS = 6

export class Lines implements vscode.Disposable {
  private readonly found = new Map<string, TraceLines['lines']>()
  private readonly amount = vscode.window.createTextEditorDecorationType({
    after: { margin: '0 0 0 3em', color: new vscode.ThemeColor('editorCodeLens.foreground') },
  })
  private readonly bars = Array.from({ length: STEPS }, (_, step) =>
    vscode.window.createTextEditorDecorationType({ gutterIconPath: bar((step + 1) / STEPS), gutterIconSize: 'contain' }),
  )
  private readonly registrations = [
    vscode.window.onDidChangeVisibleTextEditors((editors) => editors.forEach((editor) => this.draw(editor))),
    // the figures are those of the script that was traced
    vscode.workspace.onDidChangeTextDocument(({ document, contentChanges }) => contentChanges.length && this.forget(document.uri)),
    vscode.workspace.onDidCloseTextDocument(({ uri }) => this.found.delete(uri.toString())),
  ]

  show({ uri, lines }: TraceLines): void {
    const key = vscode.Uri.parse(uri).toString()
    if (lines.length) this.found.set(key, lines)
    else this.found.delete(key)
    for (const editor of vscode.window.visibleTextEditors) if (editor.document.uri.toString() === key) this.draw(editor)
  }

  private forget(uri: vscode.Uri): void {
    if (this.found.has(uri.toString())) this.show({ uri: uri.toString(), lines: [] })
  }

  private draw(editor: vscode.TextEditor): void {
    const last = editor.document.lineCount - 1
    const lines = (this.found.get(editor.document.uri.toString()) ?? []).filter(({ line }) => line >= 0 && line <= last)
    const most = Math.max(1, ...lines.map(({ bytes }) => bytes))
    const end = (line: number): vscode.Range => new vscode.Range(line, Number.MAX_SAFE_INTEGER, line, Number.MAX_SAFE_INTEGER)
    editor.setDecorations(this.amount, lines.map(({ line, text }) => ({ range: end(line), renderOptions: { after: { contentText: text } } })))
    const step = (bytes: number): number => Math.min(STEPS - 1, Math.floor((bytes / most) * STEPS))
    this.bars.forEach((kind, at) => editor.setDecorations(kind, lines.filter(({ bytes }) => step(bytes) === at).map(({ line }) => end(line))))
  }

  dispose(): void {
    for (const each of [...this.registrations, this.amount, ...this.bars]) each.dispose()
  }
}

function bar(share: number): vscode.Uri {
  const wide = (14 * share).toFixed(1)
  const drawing = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect x="1" y="5" width="${wide}" height="6" rx="1" fill="#3b82f6"/></svg>`
  return vscode.Uri.parse(`data:image/svg+xml;base64,${Buffer.from(drawing).toString('base64')}`)
}
